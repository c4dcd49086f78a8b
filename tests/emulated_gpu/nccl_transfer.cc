#include "tests/emulated_gpu/nccl_transfer.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <poll.h>
#include <sys/socket.h>
#include <utility>

#include "shared/base/text.h"
#include "tests/emulated_gpu/nccl_communicator.h"
#include "tests/emulated_gpu/nccl_reduce.h"

namespace cp::emulated {
namespace {

constexpr int kTransferPollMs = 50;
constexpr std::uint32_t kMagic = 0x4e43434c;

enum class Kind : std::uint32_t { collective, send, acknowledged, put, signal, goodbye };

}  // namespace

struct NcclTransfers::Header {
  std::uint32_t magic = kMagic;
  Kind kind = Kind::collective;
  NcclOperation::Function function = NcclOperation::Function::send;
  std::int32_t type = 0, op = 0, root = 0;
  std::uint64_t count = 0, number = 0, size = 0;  // number: of the collective; size: bytes that follow
  std::int64_t send_at = -1, recv_at = -1;        // of copy engines, as NcclOperation has them
  std::int32_t window = -1;
};

struct NcclTransfers::Frame {
  Header header;
  std::vector<std::byte> data;
};

struct NcclTransfers::Outgoing {
  Header header;
  const std::byte* data = nullptr;
  std::size_t sent = 0;  // of header and data
};

struct NcclTransfers::Peer {
  int fd = -1;
  bool gone = false, said_goodbye = false;
  Frame partial;
  std::size_t received = 0;  // of `partial`, header and data
  std::deque<Frame> collectives, sends;
  std::size_t acknowledgements = 0;
  std::size_t signals = 0;  // that nothing has waited for
};

// A call of this side: which frames it still needs.
struct NcclTransfers::Item {
  NcclOperation operation;
  std::uint64_t number = 0;                  // of a collective
  std::vector<std::vector<std::byte>> gave;  // to a reduction, by rank
};

namespace {

bool reduces(NcclOperation::Function function) {
  return function == NcclOperation::Function::all_reduce ||
         function == NcclOperation::Function::reduce_scatter;
}

}  // namespace

bool is_collective(const NcclOperation& operation) {
  return operation.function != NcclOperation::Function::send &&
         operation.function != NcclOperation::Function::recv && !is_one_sided(operation);
}

bool is_one_sided(const NcclOperation& operation) {
  return operation.function >= NcclOperation::Function::put_signal;
}

std::string to_text(const NcclOperation& operation) {
  static constexpr std::array<const char*, 10> kNames = {
      "all_gather", "reduce_scatter", "all_reduce", "broadcast", "all_to_all",
      "send",       "recv",           "put_signal", "signal",    "wait_signal"};
  std::string text = str(kNames.at(static_cast<std::size_t>(operation.function)), " of ", operation.count,
                         " x type ", static_cast<int>(operation.type));
  if (reduces(operation.function)) text += str(", op ", static_cast<int>(operation.op));
  if (operation.function == NcclOperation::Function::broadcast) text += str(", root ", operation.peer);
  if (is_collective(operation) && operation.send_at >= 0)
    text += str(", windows at ", operation.send_at, " and ", operation.recv_at);
  return text;
}

// One call of run().
class NcclTransfers::Run {
 public:
  Run(NcclTransfers& all, const std::vector<NcclOperation>& operations, const GivenUp& given_up)
      : all_(all), peers_(all.peers_), given_up_(given_up), links_(peers_.size()) {
    for (const NcclOperation& operation : operations) {
      items_.push_back({operation, 0, {}});
      if (is_collective(operation)) items_.back().number = all_.collectives_++;
    }
    for (std::size_t i = 0; i < items_.size(); ++i) add(i);
    match_with_self();
  }

  bool progress() {  // until all is done; false when given up
    while (match(), !is_done()) {
      if (given_up_()) return false;
      check_peers();
      exchange();
    }
    for (Item& item : items_) finish(item);
    return true;
  }

 private:
  struct Link {  // to a peer
    std::deque<Outgoing> outgoing;
    std::deque<std::size_t> collectives, recvs;  // items that need a frame
    std::size_t unacknowledged = 0;
    std::size_t awaited = 0;  // signals of the peer
  };

  void add(std::size_t index) {
    Item& item = items_[index];
    const NcclOperation& operation = item.operation;
    if (operation.function == NcclOperation::Function::recv) {
      links_[peer_of(operation)].recvs.push_back(index);
    } else if (operation.function == NcclOperation::Function::send) {
      Link& link = links_[peer_of(operation)];
      link.outgoing.push_back(outgoing(item, operation.send, operation.count, Kind::send));
      ++link.unacknowledged;
    } else if (operation.function == NcclOperation::Function::wait_signal) {
      links_[peer_of(operation)].awaited += operation.signals;
    } else if (is_one_sided(operation)) {
      const bool puts = operation.function == NcclOperation::Function::put_signal;
      links_[peer_of(operation)].outgoing.push_back(
          outgoing(item, operation.send, puts ? operation.count : 0, puts ? Kind::put : Kind::signal));
    } else {
      if (reduces(operation.function)) item.gave.resize(peers_.size());
      for (std::size_t peer = 0; peer < peers_.size(); ++peer) {
        if (peer == self()) continue;
        const auto [data, count] = gives(operation, peer);
        links_[peer].outgoing.push_back(outgoing(item, data, count, Kind::collective));
        links_[peer].collectives.push_back(index);
      }
    }
  }

  // What the peer gets of this rank's memory, and how many elements.
  std::pair<const std::byte*, std::size_t> gives(const NcclOperation& operation, std::size_t peer) const {
    switch (operation.function) {
      case NcclOperation::Function::reduce_scatter:
      case NcclOperation::Function::all_to_all:
        return {operation.send + peer * bytes(operation), operation.count};
      case NcclOperation::Function::broadcast:
        if (peer_of(operation) != self()) return {nullptr, 0};
        break;
      default:
        break;
    }
    return {operation.send, operation.count};
  }

  static Outgoing outgoing(const Item& item, const std::byte* data, std::size_t count, Kind kind) {
    const NcclOperation& operation = item.operation;
    Header header;
    header.kind = kind;
    header.function = operation.function;
    header.type = operation.type;
    header.op = reduces(operation.function) ? static_cast<int>(operation.op) : 0;
    header.root = operation.function == NcclOperation::Function::broadcast ? operation.peer : 0;
    header.count = operation.count;
    header.send_at = operation.send_at, header.recv_at = operation.recv_at;
    header.window = operation.window;
    header.number = item.number;
    header.size = count * size_bytes(operation.type);
    return {header, data, 0};
  }

  // Sends of a rank to itself.
  void match_with_self() {
    Link& link = links_[self()];
    while (!link.outgoing.empty() && link.outgoing.front().header.kind == Kind::signal) {
      link.outgoing.pop_front();
      ++peers_[self()].signals;
    }
    while (!link.outgoing.empty() && !link.recvs.empty()) {
      const Outgoing& sent = link.outgoing.front();
      Item& item = items_[link.recvs.front()];
      compare(sent.header, item, self());
      if (sent.header.size > 0) std::memmove(item.operation.recv, sent.data, sent.header.size);
      link.outgoing.pop_front();
      link.recvs.pop_front();
      --link.unacknowledged;
    }
    if (!link.outgoing.empty() || !link.recvs.empty())
      throw NcclFailure(ncclInvalidUsage, "a send of a rank to itself needs its recv in the same group");
  }

  void match() {
    for (std::size_t i = 0; i < peers_.size(); ++i) {
      Peer& peer = peers_[i];
      Link& link = links_[i];
      while (!link.collectives.empty() && !peer.collectives.empty()) {
        Item& item = items_[link.collectives.front()];
        compare(peer.collectives.front().header, item, i);
        take(peer.collectives.front(), item, i);
        peer.collectives.pop_front();
        link.collectives.pop_front();
      }
      while (!link.recvs.empty() && !peer.sends.empty()) {
        const Item& item = items_[link.recvs.front()];
        const Frame& frame = peer.sends.front();
        compare(frame.header, item, i);
        if (!frame.data.empty()) std::memcpy(item.operation.recv, frame.data.data(), frame.data.size());
        Outgoing acknowledgement;
        acknowledgement.header.kind = Kind::acknowledged;
        link.outgoing.push_back(acknowledgement);
        peer.sends.pop_front();
        link.recvs.pop_front();
      }
      const std::size_t signalled = std::min(link.awaited, peer.signals);
      link.awaited -= signalled;
      peer.signals -= signalled;
      const std::size_t acknowledged = std::min(link.unacknowledged, peer.acknowledgements);
      link.unacknowledged -= acknowledged;
      peer.acknowledgements -= acknowledged;
    }
  }

  void compare(const Header& theirs, const Item& item, std::size_t peer) const {
    const NcclOperation& mine = item.operation;
    const Header own = outgoing(item, nullptr, 0, Kind::collective).header;
    const bool fits = theirs.type == own.type && theirs.count == own.count && theirs.op == own.op &&
                      theirs.root == own.root && theirs.number == own.number &&
                      theirs.send_at == own.send_at && theirs.recv_at == own.recv_at &&
                      (theirs.kind == Kind::send || theirs.function == own.function);
    if (fits) return;
    NcclOperation other = mine;
    other.function = theirs.function;
    other.type = static_cast<ncclDataType_t>(theirs.type);
    other.op = static_cast<ncclRedOp_t>(theirs.op);
    other.count = theirs.count;
    other.peer = theirs.root;
    other.send_at = theirs.send_at, other.recv_at = theirs.recv_at;
    throw NcclFailure(ncclInvalidUsage,
                      str("mismatch: rank ", self(), " is in ", to_text(mine), " (collective ", item.number,
                          "), rank ", peer, " in ", to_text(other), " (collective ", theirs.number, ")"));
  }

  void take(Frame& frame, Item& item, std::size_t peer) const {
    const NcclOperation& operation = item.operation;
    if (reduces(operation.function)) {
      item.gave[peer] = std::move(frame.data);
    } else if (!frame.data.empty()) {
      const bool blocks = operation.function == NcclOperation::Function::all_gather ||
                          operation.function == NcclOperation::Function::all_to_all;
      const std::size_t at = blocks ? peer : 0;
      std::memcpy(operation.recv + at * bytes(operation), frame.data.data(), frame.data.size());
    }
  }

  // What this rank gives itself.
  void finish(Item& item) const {
    const NcclOperation& operation = item.operation;
    if (operation.function == NcclOperation::Function::all_gather) {
      std::byte* to = operation.recv + self() * bytes(operation);
      if (to != operation.send && operation.count > 0) std::memcpy(to, operation.send, bytes(operation));
    } else if (operation.function == NcclOperation::Function::all_to_all) {
      const std::size_t at = self() * bytes(operation);
      if (operation.count > 0) std::memcpy(operation.recv + at, operation.send + at, bytes(operation));
    } else if (operation.function == NcclOperation::Function::broadcast && peer_of(operation) == self()) {
      if (operation.recv != operation.send && operation.count > 0)
        std::memcpy(operation.recv, operation.send, bytes(operation));
    } else if (reduces(operation.function)) {
      const bool scatters = operation.function == NcclOperation::Function::reduce_scatter;
      std::vector<const std::byte*> inputs;
      for (const std::vector<std::byte>& given : item.gave) inputs.push_back(given.data());
      inputs[self()] = operation.send + (scatters ? self() * bytes(operation) : 0);
      reduce_elements(operation.op, operation.type, inputs, operation.recv, operation.count);
    }
  }

  bool is_done() const {
    return std::ranges::all_of(links_, [](const Link& link) {
      return link.outgoing.empty() && link.collectives.empty() && link.recvs.empty() &&
             link.unacknowledged == 0 && link.awaited == 0;
    });
  }

  void check_peers() const {
    for (std::size_t i = 0; i < peers_.size(); ++i) {
      const Link& link = links_[i];
      const bool needed = !link.outgoing.empty() || !link.collectives.empty() || !link.recvs.empty() ||
                          link.unacknowledged > 0 || link.awaited > 0;
      if (peers_[i].gone && needed)
        throw NcclFailure(ncclRemoteError,
                          str("rank ", i,
                              peers_[i].said_goodbye ? " has destroyed its communicator"
                                                     : " has closed the connection: it is lost"));
    }
  }

  void exchange() {
    std::vector<pollfd> polled;
    for (std::size_t i = 0; i < peers_.size(); ++i) {
      const int events = POLLIN | (links_[i].outgoing.empty() ? 0 : POLLOUT);
      polled.push_back({peers_[i].gone ? -1 : peers_[i].fd, static_cast<short>(events), 0});
    }
    if (::poll(polled.data(), polled.size(), kTransferPollMs) <= 0) return;
    for (std::size_t i = 0; i < peers_.size(); ++i) {
      if ((polled[i].revents & POLLOUT) != 0) send_to(peers_[i], links_[i]);
      if ((polled[i].revents & (POLLIN | POLLHUP | POLLERR)) != 0) receive_from(peers_[i]);
    }
  }

  static void send_to(Peer& peer, Link& link) {
    while (!link.outgoing.empty()) {
      Outgoing& next = link.outgoing.front();
      const bool in_header = next.sent < sizeof(Header);
      const std::byte* from = in_header ? reinterpret_cast<const std::byte*>(&next.header) + next.sent
                                        : next.data + (next.sent - sizeof(Header));
      const std::size_t left = (in_header ? sizeof(Header) : sizeof(Header) + next.header.size) - next.sent;
      if (left > 0) {
        const ssize_t sent = ::send(peer.fd, from, left, MSG_NOSIGNAL);
        if (sent < 0) {
          if (errno != EAGAIN && errno != EINTR) peer.gone = true;
          return;
        }
        next.sent += static_cast<std::size_t>(sent);
      }
      if (next.sent == sizeof(Header) + next.header.size) link.outgoing.pop_front();
    }
  }

  void receive_from(Peer& peer) {
    while (true) {
      Frame& frame = peer.partial;
      const bool in_header = peer.received < sizeof(Header);
      std::byte* to = in_header ? reinterpret_cast<std::byte*>(&frame.header) + peer.received
                                : frame.data.data() + (peer.received - sizeof(Header));
      const std::size_t left =
          (in_header ? sizeof(Header) : sizeof(Header) + frame.header.size) - peer.received;
      const ssize_t got = ::recv(peer.fd, to, left, 0);
      if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) peer.gone = true;
      if (got <= 0) return;
      peer.received += static_cast<std::size_t>(got);
      if (peer.received == sizeof(Header)) frame.data.resize(frame.header.size);
      if (peer.received >= sizeof(Header) && peer.received == sizeof(Header) + frame.header.size) keep(peer);
    }
  }

  void keep(Peer& peer) {
    switch (peer.partial.header.kind) {
      case Kind::collective:
        peer.collectives.push_back(std::move(peer.partial));
        break;
      case Kind::send:
        peer.sends.push_back(std::move(peer.partial));
        break;
      case Kind::acknowledged:
        ++peer.acknowledgements;
        break;
      case Kind::put:
        all_.take_put(peer.partial);
        ++peer.signals;
        break;
      case Kind::signal:
        ++peer.signals;
        break;
      case Kind::goodbye:
        peer.said_goodbye = true;
        break;
    }
    peer.partial = {};
    peer.received = 0;
  }

  std::size_t self() const { return static_cast<std::size_t>(all_.rank_); }
  static std::size_t peer_of(const NcclOperation& operation) {
    return static_cast<std::size_t>(operation.peer);
  }
  static std::size_t bytes(const NcclOperation& operation) {
    return operation.count * size_bytes(operation.type);
  }

  NcclTransfers& all_;
  std::vector<Peer>& peers_;
  const GivenUp& given_up_;
  std::vector<Item> items_;
  std::vector<Link> links_;
};

NcclTransfers::NcclTransfers(int rank, const std::vector<Socket>& sockets)
    : rank_(rank), peers_(sockets.size()) {
  for (std::size_t i = 0; i < sockets.size(); ++i) peers_[i].fd = sockets[i].fd();
}

NcclTransfers::~NcclTransfers() = default;

void NcclTransfers::run(const std::vector<NcclOperation>& operations, const GivenUp& given_up) {
  Run(*this, operations, given_up).progress();
}

void NcclTransfers::set_window(std::int32_t number, std::byte* data, std::size_t size) {
  const std::lock_guard lock(windows_mutex_);
  windows_.resize(std::max(windows_.size(), static_cast<std::size_t>(number) + 1));
  windows_[static_cast<std::size_t>(number)] = {data, size};
}

void NcclTransfers::take_put(const Frame& frame) {
  const std::lock_guard lock(windows_mutex_);
  const auto number = static_cast<std::size_t>(frame.header.window);
  const auto at = static_cast<std::size_t>(frame.header.recv_at);
  if (number >= windows_.size() || windows_[number].data == nullptr || at > windows_[number].size ||
      frame.data.size() > windows_[number].size - at) {
    throw NcclFailure(ncclInvalidUsage, str("a put of ", frame.data.size(), " bytes at ", at, " of window ",
                                            number, " arrives outside of it, or when it is deregistered"));
  }
  if (!frame.data.empty()) std::memcpy(windows_[number].data + at, frame.data.data(), frame.data.size());
}

void NcclTransfers::say_goodbye() {
  Header header;
  header.kind = Kind::goodbye;
  for (const Peer& peer : peers_)
    if (peer.fd >= 0) static_cast<void>(::send(peer.fd, &header, sizeof header, MSG_NOSIGNAL));
}

}  // namespace cp::emulated
