// Connection: frames over one TCP connection, sealed from the moment that both sides have a session.
//
// All functions are for the thread that runs the io_context. Handlers are never called from within a
// function, and not after close().
#pragma once

#include <array>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include <boost/asio/ip/tcp.hpp>

#include "runtime/rendezvous/authentication.h"
#include "runtime/rendezvous/frame.h"
#include "runtime/rendezvous/wire.h"

namespace cp::runtime {

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  struct Handlers {
    std::function<void(const proto::RendezvousFrame&)> on_frame;
    std::function<void(const Error&)> on_error;  // of parsing, or that on_frame threw; reading has ended
    std::function<void(const std::string& why)> on_closed;  // by the other side, or broken
  };

  // The socket is connected.
  Connection(boost::asio::ip::tcp::socket socket, std::size_t max_frame_bytes);

  void start(Handlers handlers);
  void secure(Session session) { session_.emplace(std::move(session)); }
  void set_max_frame_bytes(std::size_t bytes) { parser_.set_max_bytes(bytes); }

  // The message of a frame: sealed once the connection is secured, plain before. Throws AuthenticationError,
  // RendezvousError.
  Message open(const proto::RendezvousFrame& frame);
  void send(const Message& message);        // sealed once the connection is secured
  void send_plain(const Message& message);  // in any case
  void close_after_sending();               // what comes in meanwhile is dropped
  void close();
  bool is_open() const { return socket_.is_open() && !closing_; }

 private:
  void read();
  void take(std::string_view bytes);
  void send_frame(const proto::RendezvousFrame& frame);
  void write();
  void drain();
  void lost(const boost::system::error_code& error);

  boost::asio::ip::tcp::socket socket_;
  FrameParser parser_;
  Handlers handlers_;
  std::optional<Session> session_;
  std::array<char, 16384> input_{};
  std::deque<std::string> output_;
  bool closing_ = false;
};

}  // namespace cp::runtime
