#include "runtime/rendezvous/connection.h"

#include <utility>

#include <boost/asio/buffer.hpp>
#include <boost/asio/write.hpp>

namespace cp::runtime {

using boost::asio::ip::tcp;
using boost::system::error_code;

Connection::Connection(tcp::socket socket, std::size_t max_frame_bytes)
    : socket_(std::move(socket)), parser_(max_frame_bytes) {
  error_code ignored;
  socket_.set_option(tcp::no_delay(true), ignored);
}

void Connection::start(Handlers handlers) {
  handlers_ = std::move(handlers);
  read();
}

Message Connection::open(const proto::RendezvousFrame& frame) {
  return parse_message(session_ ? session_->open(frame) : frame.message());
}

void Connection::send(const Message& message) {
  if (!session_) return send_plain(message);
  // The size is checked first, so that a message which fits no frame takes no number either.
  const std::string bytes = message.SerializeAsString();
  if (bytes.size() + 2 * kMacBytes > kMaxFrameBytes) {
    throw InvalidInput(
        str("the message has ", bytes.size(), " bytes, but a frame holds ", kMaxFrameBytes - 2 * kMacBytes));
  }
  send_frame(session_->seal(bytes));
}

void Connection::send_plain(const Message& message) {
  proto::RendezvousFrame frame;
  frame.set_message(message.SerializeAsString());
  send_frame(frame);
}

void Connection::send_frame(const proto::RendezvousFrame& frame) {
  if (!is_open()) return;
  output_.push_back(encode_frame(frame));
  if (output_.size() == 1) write();
}

void Connection::write() {
  boost::asio::async_write(socket_, boost::asio::buffer(output_.front()),
                           [self = shared_from_this()](const error_code& error, std::size_t) {
                             if (error) return self->lost(error);
                             self->output_.pop_front();
                             if (!self->output_.empty()) return self->write();
                             if (self->closing_) self->drain();
                           });
}

// Closing a socket with unread input resets the connection, and the peer may lose what was sent to it last.
// So the end is told first; the peer's own end then closes the socket.
void Connection::drain() {
  error_code ignored;
  socket_.shutdown(tcp::socket::shutdown_send, ignored);
}

void Connection::read() {
  socket_.async_read_some(boost::asio::buffer(input_),
                          [self = shared_from_this()](const error_code& error, std::size_t count) {
                            if (error) return self->lost(error);
                            if (!self->closing_) self->take({self->input_.data(), count});
                            if (self->socket_.is_open()) self->read();
                          });
}

void Connection::take(std::string_view bytes) {
  try {
    parser_.feed(bytes);
    while (is_open()) {
      const auto frame = parser_.next();
      if (!frame) return;
      handlers_.on_frame(*frame);
    }
  } catch (const Error& error) {
    if (handlers_.on_error) handlers_.on_error(error);
    if (is_open()) close();
  }
}

void Connection::lost(const error_code& error) {
  if (!socket_.is_open()) return;
  const bool silent = closing_;
  close();
  if (silent || !handlers_.on_closed) return;
  handlers_.on_closed(error == boost::asio::error::eof ? std::string("closed by the other side")
                                                       : error.message());
}

void Connection::close_after_sending() {
  if (!is_open()) return;
  closing_ = true;
  if (output_.empty()) drain();
}

void Connection::close() {
  error_code ignored;
  socket_.close(ignored);
}

}  // namespace cp::runtime
