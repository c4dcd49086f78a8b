// Stream sockets between processes of this host, by name; no file is left behind.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <stdexcept>
#include <string>
#include <utility>

namespace cp::emulated {

class SocketError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept;
  ~Socket();

  int fd() const { return fd_; }
  void shut_down() const;  // for any thread: the other side sees the end, and who waits here does

 private:
  int fd_ = -1;
};

using GivenUp = std::function<bool()>;  // asked while a call waits; the call then throws SocketError

Socket listen_at(const std::string& name);
Socket connect_to(const std::string& name, const GivenUp& given_up);  // waits until somebody listens
Socket accept_from(const Socket& listener, const GivenUp& given_up);
void send_all(const Socket& socket, const void* data, std::size_t size, const GivenUp& given_up);
void receive_all(const Socket& socket, void* data, std::size_t size, const GivenUp& given_up);

// Datagrams, which come whole, in order and without a connection. Both functions return at once, and false
// where there is no room at the other side, nobody there, or nothing to receive.
Socket datagrams_at(const std::string& name);
bool try_send_to(const Socket& socket, const std::string& name, const void* data, std::size_t size);
bool try_receive(const Socket& socket, void* data, std::size_t size);
void wait_to_receive(const Socket& socket);  // for some milliseconds at most

template <class T>
void send_value(const Socket& socket, const T& value, const GivenUp& given_up) {
  send_all(socket, &value, sizeof value, given_up);
}
template <class T>
T receive_value(const Socket& socket, const GivenUp& given_up) {
  T value{};
  receive_all(socket, &value, sizeof value, given_up);
  return value;
}

std::string unique_socket_name();

}  // namespace cp::emulated
