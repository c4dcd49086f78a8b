#include "tests/emulated_gpu/nccl_bootstrap.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <poll.h>
#include <string_view>
#include <thread>
#include <tuple>
#include <unistd.h>

#include <nccl.h>

#include "shared/base/text.h"
#include "tests/emulated_gpu/devices.h"
#include "tests/emulated_gpu/emulated_nccl.h"

namespace cp::emulated {
namespace {

thread_local std::string t_host_id;

struct Arrived {
  Hello hello;
  Socket socket;
};

struct Answer {
  int rank = -1, size = 0;
  char token[96] = {};
};

void copy_text(char (&to)[96], const std::string& text) { text.copy(to, sizeof to - 1); }

bool has_gone(const Socket& socket) {
  pollfd polled{socket.fd(), POLLIN, 0};
  return ::poll(&polled, 1, 0) > 0;  // a rank says nothing after its hello
}

// Answers one member of each color after the other; members are in order of key, then rank.
void answer(std::vector<Arrived>& arrived) {
  const GivenUp never = [] { return false; };
  std::ranges::sort(arrived, [](const Arrived& a, const Arrived& b) {
    return std::tie(a.hello.color, a.hello.key, a.hello.rank) <
           std::tie(b.hello.color, b.hello.key, b.hello.rank);
  });
  for (auto begin = arrived.begin(); begin != arrived.end();) {
    const auto end = std::find_if(
        begin, arrived.end(), [&](const Arrived& other) { return other.hello.color != begin->hello.color; });
    Answer given;
    const bool is_group = begin->hello.color != NCCL_SPLIT_NOCOLOR;
    if (is_group) copy_text(given.token, unique_socket_name());
    given.size = is_group ? static_cast<int>(end - begin) : 0;
    std::vector<Hello> hellos;
    for (auto i = begin; is_group && i != end; ++i) hellos.push_back(i->hello);
    for (auto i = begin; i != end; ++i) {
      given.rank = is_group ? static_cast<int>(i - begin) : -1;
      try {
        send_value(i->socket, given, never);
        send_all(i->socket, hellos.data(), hellos.size() * sizeof(Hello), never);
      } catch (const SocketError&) {
        // Gone meanwhile: the others find out when they connect.
      }
    }
    begin = end;
  }
}

void serve(const Socket& listener, int size) {
  std::vector<Arrived> arrived;
  bool all_gone = false;
  while (!all_gone && (size < 0 || arrived.size() < static_cast<std::size_t>(size))) {
    const GivenUp given_up = [&] {
      return !arrived.empty() &&
             std::ranges::all_of(arrived, [](const Arrived& rank) { return has_gone(rank.socket); });
    };
    try {
      Socket socket = accept_from(listener, given_up);
      const auto hello = receive_value<Hello>(socket, [] { return false; });
      if (size < 0) size = hello.size;
      arrived.push_back({hello, std::move(socket)});
    } catch (const SocketError&) {
      all_gone = given_up();
    }
  }
  if (!all_gone) answer(arrived);
}

}  // namespace

void set_host_id(const std::string& host_id) { t_host_id = host_id; }

std::string calls_name(const Hello& hello) { return str(hello.listener, ".calls"); }

std::uint64_t host_hash() {
  const char* set = std::getenv("NCCL_HOSTID");
  std::string host = !t_host_id.empty() ? t_host_id : set != nullptr ? set : "";
  if (host.empty()) {
    char name[256] = {};
    ::gethostname(name, sizeof name - 1);
    host = name;
  }
  return std::hash<std::string>{}(host);
}

void serve_root(const std::string& name, int size) {
  auto listener = std::make_shared<Socket>(listen_at(name));
  std::thread([listener, size] { serve(*listener, size); }).detach();
}

Members join(const std::string& root, Hello hello, const GivenUp& given_up) {
  const std::string name = unique_socket_name();
  copy_text(hello.listener, name);
  const Socket listener = listen_at(name);
  Members members;
  members.calls = datagrams_at(calls_name(hello));
  const Socket to_root = connect_to(root, given_up);
  send_value(to_root, hello, given_up);
  const auto answer = receive_value<Answer>(to_root, given_up);
  members.rank = answer.rank;
  members.token = answer.token;
  const auto size = static_cast<std::size_t>(answer.size);
  members.hellos.resize(size);
  receive_all(to_root, members.hellos.data(), size * sizeof(Hello), given_up);
  members.sockets.resize(size);
  for (int peer = 0; peer < answer.rank; ++peer) {
    Socket socket = connect_to(members.hellos[static_cast<std::size_t>(peer)].listener, given_up);
    send_value(socket, answer.rank, given_up);
    members.sockets[static_cast<std::size_t>(peer)] = std::move(socket);
  }
  for (int left = answer.size - 1 - answer.rank; answer.rank >= 0 && left > 0; --left) {
    Socket socket = accept_from(listener, given_up);
    const int peer = receive_value<int>(socket, given_up);
    members.sockets.at(static_cast<std::size_t>(peer)) = std::move(socket);
  }
  return members;
}

}  // namespace cp::emulated
