#include "runtime/gloo/sealed_connect.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <exception>
#include <list>
#include <memory>
#include <optional>
#include <utility>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <gloo/common/error.h>

#include "runtime/errors.h"
#include "runtime/gloo/sealed_proof.h"
#include "runtime/rendezvous/endpoint.h"
#include "runtime/rendezvous/status.h"
#include "runtime/rendezvous/wire.h"
#include "shared/base/error.h"
#include "shared/plan/canonical.h"

namespace cp::runtime {
namespace {

using boost::asio::ip::tcp;
using boost::system::error_code;
using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;

// A connection that was lost before it was proven is tried again after kFirstRetry, and then after twice as
// long each time, up to kLastRetry. Chosen: the first attempts cost only milliseconds, and the later ones do
// not add to a flood at the listener, which may be why the connection was closed.
constexpr Milliseconds kFirstRetry{5}, kLastRetry{250};
// An abort cannot end a wait in the store, and connections cannot be served during one. So the wait is cut
// into slices of this length, by which both are delayed at most (chosen).
constexpr Milliseconds kStoreSlice{200};
// After accepting so many connections, those that are connected get their turn. Chosen, so that strangers who
// connect all the time cannot starve peers.
constexpr int kAcceptedAtOnce = 16;

std::string text_of(const tcp::endpoint& endpoint) {
  return endpoint_text(endpoint.address().to_string(), endpoint.port());
}

// What a rank tells the others about its listener: "127.0.0.1 4711 <ticket>".
struct Listener {
  tcp::endpoint endpoint;
  std::string ticket;
};

std::string to_text(const Listener& listener) {
  return str(listener.endpoint.address().to_string(), ' ', listener.endpoint.port(), ' ', listener.ticket);
}

Listener parse_listener(const std::string& text, Rank rank) {
  const std::vector<std::string_view> parts = split(text, ' ');
  error_code error;
  if (parts.size() == 3) {
    const auto address = boost::asio::ip::make_address(std::string(parts[0]), error);
    if (!error) {
      const std::int64_t port = parse_int(parts[1], "port");
      return {{address, static_cast<std::uint16_t>(port)}, std::string(parts[2])};
    }
  }
  throw RendezvousError(str("rank ", rank, " sent '", printable(text),
                            "' instead of its address; do all ranks run the same version?"));
}

class SealedConnect {
 public:
  SealedConnect(const Group& group, std::int32_t index, gloo::rendezvous::Store& store,
                const SealedOptions& options)
      : group_(group),
        name_(canonical_name(group)),
        index_(static_cast<std::size_t>(index)),
        store_(store),
        options_(options),
        deadline_(Clock::now() + options.timeout),
        work_(io_.get_executor()),
        timer_(io_),
        pause_(io_) {
    result_.sockets.resize(group.ranks.size());
  }

  SealedSockets run() {
    if (missing() == 0) return std::move(result_);
    const std::stop_callback on_abort(options_.abort, [this] { io_.stop(); });
    timer_.expires_at(deadline_);
    timer_.async_wait([this](const error_code& error) {
      if (!error) io_.stop();
    });
    if (index_ + 1 < group_.ranks.size()) listen();
    for (std::size_t place = 0; place < index_ && !io_.stopped(); ++place) {
      if (const auto listener = listener_of(place)) connect(place, *listener);
      io_.poll();
    }
    io_.run();
    if (error_) std::rethrow_exception(error_);
    if (missing() > 0) give_up();
    // All ranks have proven themselves.
    result_.strangers.count += static_cast<std::int64_t>(unproven_.size());
    for (const auto& incoming : unproven_) note_first(*incoming);
    return std::move(result_);
  }

 private:
  // A connection that somebody made to this rank.
  struct Incoming {
    explicit Incoming(tcp::socket connected) : socket(std::move(connected)) {}
    tcp::socket socket;
    SealedLink link;
    std::string read, written;
    std::string from;
  };

  // One that this rank makes.
  struct Outgoing {
    Outgoing(boost::asio::io_context& io, std::size_t to, Listener at)
        : place(to), listener(std::move(at)), socket(io), timer(io) {}
    std::size_t place;
    Listener listener;
    tcp::socket socket;
    boost::asio::steady_timer timer;
    Milliseconds retry_after = kFirstRetry;
    SealedLink link;
    std::string key, read, written;
    std::string problem;  // of the last attempt
  };
  using IncomingPtr = std::shared_ptr<Incoming>;
  using OutgoingPtr = std::shared_ptr<Outgoing>;

  Rank self() const { return group_.ranks[index_]; }
  std::size_t missing() const { return group_.ranks.size() - 1 - connected_; }

  template <class Connection, class Next>
  void read(const std::shared_ptr<Connection>& connection, std::size_t bytes, const Next& next) {
    connection->read.resize(bytes);
    boost::asio::async_read(connection->socket, boost::asio::buffer(connection->read),
                            [this, connection, next](const error_code& error, std::size_t) {
                              error ? lose(connection, error) : next();
                            });
  }

  template <class Connection, class Next>
  void write(const std::shared_ptr<Connection>& connection, std::string bytes, const Next& next) {
    connection->written = std::move(bytes);
    boost::asio::async_write(connection->socket, boost::asio::buffer(connection->written),
                             [this, connection, next](const error_code& error, std::size_t) {
                               error ? lose(connection, error) : next();
                             });
  }

  void keep(std::size_t place, tcp::socket& socket) {
    result_.sockets[place] = Descriptor(socket.release());
    ++connected_;
    if (missing() == 0) io_.stop();
  }

  void fail(std::exception_ptr error) {
    error_ = std::move(error);
    io_.stop();
  }

  // ---- those behind in the group connect to this rank

  void listen() {
    acceptor_.emplace(listen_on(io_, options_.address, 0));
    const Listener own{acceptor_->local_endpoint(), make_token()};
    key_ = key_of(own);
    result_.strangers.listener = text_of(own.endpoint);
    const std::string text = to_text(own);
    store_.set(store_key(self()), {text.begin(), text.end()});
    accept_later();
  }

  void accept_later() {
    acceptor_->async_wait(tcp::acceptor::wait_read, [this](const error_code& error) {
      if (error) return;
      for (int i = 0; i < kAcceptedAtOnce; ++i) {
        tcp::socket socket(io_);
        errno = 0;
        if (accept_one(*acceptor_, socket)) {
          greet(std::make_shared<Incoming>(std::move(socket)));
        } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
          return accept_with_room();
        } else {
          break;
        }
      }
      accept_later();
    });
  }

  // Called if there are no descriptors or buffers left. A connection that has proven nothing is closed for
  // the next; if there is none, it waits a moment.
  void accept_with_room() {
    if (!unproven_.empty()) {
      refuse_one();
      return accept_later();
    }
    pause_.expires_after(kFirstRetry);
    pause_.async_wait([this](const error_code& error) {
      if (!error) accept_later();
    });
  }

  void greet(const IncomingPtr& incoming) {
    if (unproven_.size() >= kMostUnproven) refuse_one();
    error_code error;
    if (const tcp::endpoint from = incoming->socket.remote_endpoint(error); !error)
      incoming->from = text_of(from);
    unproven_.push_back(incoming);
    read(incoming, kHelloBytes, [this, incoming] {
      const auto link = parse_sealed_hello(incoming->read);
      if (!link || link->listens != self() || !awaited(link->connects)) return refuse(incoming);
      incoming->link = *link;
      incoming->link.nonce_of_listening = make_nonce();
      write(incoming, incoming->link.nonce_of_listening, [this, incoming] { judge(incoming); });
    });
  }

  void judge(const IncomingPtr& incoming) {
    read(incoming, kProofBytes, [this, incoming] {
      const bool holds =
          equal_in_constant_time(incoming->read, sealed_proof(key_, SealedEnd::connects, incoming->link));
      if (!holds || !awaited(incoming->link.connects)) return refuse(incoming);
      write(incoming, sealed_proof(key_, SealedEnd::listens, incoming->link), [this, incoming] {
        const auto place = awaited(incoming->link.connects);
        if (!place) return refuse(incoming);
        std::erase(unproven_, incoming);
        keep(*place, incoming->socket);
      });
    });
  }

  // The rank's place in the group, if it is a rank that should connect to this one and has not done so yet.
  std::optional<std::size_t> awaited(Rank rank) const {
    for (std::size_t place = index_ + 1; place < group_.ranks.size(); ++place) {
      if (group_.ranks[place] == rank && !result_.sockets[place].is_open()) return place;
    }
    return std::nullopt;
  }

  void lose(const IncomingPtr& incoming, const error_code&) { refuse(incoming); }

  void refuse(IncomingPtr incoming) {
    if (std::erase(unproven_, incoming) == 0) return;  // before
    ++result_.strangers.count;
    note_first(*incoming);
    error_code ignored;
    incoming->socket.close(ignored);
  }

  // Refuses the oldest connection that has not even said which rank it is, or if there is none, the oldest.
  void refuse_one() {
    const auto silent = std::ranges::find_if(
        unproven_, [](const IncomingPtr& incoming) { return incoming->link.nonce_of_listening.empty(); });
    refuse(silent == unproven_.end() ? unproven_.front() : *silent);
  }

  void note_first(const Incoming& incoming) {
    if (result_.strangers.first.empty()) result_.strangers.first = incoming.from;
  }

  // ---- this rank connects to those before it

  static std::string store_key(Rank rank) { return str("listens/", rank); }

  std::string key_of(const Listener& listener) const {
    return sealed_key(options_.token, options_.job_id, name_, listener.ticket);
  }

  // Waits for the rank's address in the store, and serves the connections meanwhile. Returns nothing if the
  // time is over first, or an abort or an error came.
  std::optional<Listener> listener_of(std::size_t place) {
    const std::string key = store_key(group_.ranks[place]);
    while (!io_.stopped() && !is_in_store(key, kStoreSlice)) {
      awaits_address_of_ = place;
      io_.poll();
    }
    if (io_.stopped()) return std::nullopt;
    awaits_address_of_.reset();
    const std::vector<char> text = store_.get(key);
    return parse_listener({text.begin(), text.end()}, group_.ranks[place]);
  }

  bool is_in_store(const std::string& key, Milliseconds most) {
    const auto left = std::chrono::ceil<Milliseconds>(deadline_ - Clock::now());
    try {
      store_.wait({key}, std::clamp(left, Milliseconds(1), most));
      return true;
    } catch (const Timeout&) {            // of this project's store
    } catch (const gloo::IoException&) {  // of Gloo's
    }
    return false;
  }

  void connect(std::size_t place, Listener listener) {
    const auto outgoing = std::make_shared<Outgoing>(io_, place, std::move(listener));
    outgoing->key = key_of(outgoing->listener);
    outgoing_.push_back(outgoing);
    attempt(outgoing);
  }

  void attempt(const OutgoingPtr& outgoing) {
    outgoing->socket = make_socket(io_, outgoing->listener.endpoint);
    outgoing->socket.async_connect(outgoing->listener.endpoint, [this, outgoing](const error_code& error) {
      if (error == boost::asio::error::connection_refused)
        return fail(std::make_exception_ptr(gone(*outgoing)));
      if (error) return lose(outgoing, error);
      SealedLink& link = outgoing->link;
      link = {self(), group_.ranks[outgoing->place], make_nonce(), {}};
      write(outgoing, sealed_hello(link), [this, outgoing] { prove(outgoing); });
    });
  }

  void prove(const OutgoingPtr& outgoing) {
    read(outgoing, kNonceBytes, [this, outgoing] {
      outgoing->link.nonce_of_listening = outgoing->read;
      write(outgoing, sealed_proof(outgoing->key, SealedEnd::connects, outgoing->link), [this, outgoing] {
        read(outgoing, kProofBytes, [this, outgoing] {
          const std::string proof = sealed_proof(outgoing->key, SealedEnd::listens, outgoing->link);
          if (!equal_in_constant_time(outgoing->read, proof))
            return fail(std::make_exception_ptr(impostor(*outgoing)));
          keep(outgoing->place, outgoing->socket);
        });
      });
    });
  }

  // Tries again later: a listener that is flooded refuses the oldest connections, which may be a rank's.
  void lose(const OutgoingPtr& outgoing, const error_code& error) {
    outgoing->problem = error == boost::asio::error::eof ? "closed the connection" : error.message();
    outgoing->timer.expires_after(outgoing->retry_after);
    outgoing->retry_after = std::min(outgoing->retry_after * 2, kLastRetry);
    outgoing->timer.async_wait([this, outgoing](const error_code& stopped) {
      if (!stopped) attempt(outgoing);
    });
  }

  // ---- errors

  std::string what() const { return str("rank ", self(), " cannot connect group ", name_); }

  ErrorFacts about(std::vector<Rank> culprits) const {
    return {.culprits = std::move(culprits), .operation = "connect", .group = name_, .rank = self()};
  }

  // Why a refused connection means that the rank is gone: it closes its listener only when all ranks are
  // connected, this one among them, or when it ends.
  PeerLost gone(const Outgoing& outgoing) const {
    const Rank rank = group_.ranks[outgoing.place];
    return PeerLost(str(what(), ": rank ", rank, " no longer listens at ",
                        text_of(outgoing.listener.endpoint), ": it has ended or given up"),
                    about({rank}));
  }

  AuthenticationError impostor(const Outgoing& outgoing) const {
    return AuthenticationError(
        str(what(), ": the program that listens at ", text_of(outgoing.listener.endpoint),
            ", the address of rank ", group_.ranks[outgoing.place],
            ", does not know the job's token; another program uses that port"),
        about({}));
  }

  [[noreturn]] void give_up() {
    if (options_.abort.stop_requested())
      throw PeerLost(
          str(what(), ": the device was aborted while ", ranks_text(absent()), " had not connected"),
          about({}));
    const std::vector<Rank> ranks = absent();
    std::string text = str(what(), ": ", ranks_text(ranks), ranks.size() == 1 ? " has" : " have",
                           " not connected within ", duration_text(options_.timeout));
    for (const OutgoingPtr& outgoing : outgoing_) {
      if (result_.sockets[outgoing->place].is_open()) continue;
      text += str("; rank ", group_.ranks[outgoing->place], " said that it listens at ",
                  text_of(outgoing->listener.endpoint), ", which ",
                  outgoing->problem.empty() ? "does not answer" : str("failed: ", outgoing->problem));
    }
    if (result_.strangers.count > 0)
      text += str("; ", result_.strangers.count, " connections to ", result_.strangers.listener,
                  " did not prove the job's token");
    throw Timeout(text, about(ranks));
  }

  // The ranks that are certainly not there. Addresses are asked for in order, so a rank behind the one whose
  // address is awaited may be there, and is not named.
  std::vector<Rank> absent() {
    std::vector<Rank> ranks;
    for (std::size_t place = 0; place < group_.ranks.size(); ++place) {
      if (place == index_ || result_.sockets[place].is_open()) continue;
      const bool is_asked = !awaits_address_of_ || place <= *awaits_address_of_ || place > index_;
      if (is_asked) ranks.push_back(group_.ranks[place]);
    }
    return ranks;
  }

  const Group& group_;
  const std::string name_;
  const std::size_t index_;
  gloo::rendezvous::Store& store_;
  const SealedOptions& options_;
  const Clock::time_point deadline_;
  boost::asio::io_context io_{1};
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_;
  boost::asio::steady_timer timer_, pause_;
  std::optional<tcp::acceptor> acceptor_;
  std::string key_;                  // of the own listener
  std::list<IncomingPtr> unproven_;  // the oldest first
  std::vector<OutgoingPtr> outgoing_;
  std::optional<std::size_t> awaits_address_of_;
  std::size_t connected_ = 0;
  SealedSockets result_;
  std::exception_ptr error_;
};

}  // namespace

SealedSockets connect_sealed(const Group& group, std::int32_t index, gloo::rendezvous::Store& store,
                             const SealedOptions& options) {
  return SealedConnect(group, index, store, options).run();
}

}  // namespace cp::runtime
