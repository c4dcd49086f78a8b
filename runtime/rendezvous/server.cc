#include "runtime/rendezvous/server.h"

#include <algorithm>
#include <list>
#include <mutex>
#include <thread>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>

#include "runtime/rendezvous/authentication.h"
#include "runtime/rendezvous/connection.h"
#include "runtime/rendezvous/divergence.h"
#include "runtime/rendezvous/endpoint.h"
#include "runtime/rendezvous/roster.h"
#include "runtime/rendezvous/stall.h"
#include "runtime/rendezvous/store.h"
#include "runtime/this_host.h"

namespace cp::runtime {
namespace {

using boost::asio::ip::tcp;
using boost::system::error_code;
using Clock = std::chrono::steady_clock;

// How often the server looks at its clocks. Chosen: every time limit is up to this much late, and the
// shortest is 300 ms (kSettleTime in roster.cc).
constexpr std::chrono::milliseconds kTick{20};
// How long the server stays for launchers to hear how the job has ended (chosen).
constexpr std::chrono::milliseconds kLastWords{1'000};

void refuse_bad(const ServerOptions& options) {
  if (options.world_size < 1)
    throw InvalidInput(str("the world size is ", options.world_size, "; use at least 1"));
  if (options.token.size() < kMinTokenBytes) {
    throw InvalidInput(str("the token has ", options.token.size(), " characters; use at least ",
                           kMinTokenBytes, ", for example one of make_token()"));
  }
  if (options.heartbeat_timeout < kTick * 4 || options.handshake_timeout <= kTick) {
    throw InvalidInput(str("the heartbeat timeout is ", duration_text(options.heartbeat_timeout),
                           " and the handshake timeout ", duration_text(options.handshake_timeout),
                           "; use at least ", duration_text(kTick * 4), " for each"));
  }
}

}  // namespace

class RendezvousServer::Impl {
 public:
  explicit Impl(ServerOptions options)
      : options_(std::move(options)),
        acceptor_((refuse_bad(options_), listen_on(io_, options_.interface, options_.port))),
        address_(acceptor_.local_endpoint().address().to_string()),
        port_(acceptor_.local_endpoint().port()),
        timer_(io_),
        roster_(options_.world_size, options_.heartbeat_timeout, options_.join_timeout),
        store_(roster_),
        divergence_(options_.heartbeat_timeout / 2),
        stall_(options_.heartbeat_timeout, options_.compute_timeout) {
    if (options_.launches > 0) roster_.launcher_joins(0, options_.launches, host_name(), getpid());
    accept();
    tick();
    thread_ = std::thread([this] { io_.run(); });
  }

  ~Impl() {
    io_.stop();
    thread_.join();
  }

  const std::string& address() const { return address_; }
  std::uint16_t port() const { return port_; }

  std::optional<Failure> first_failure() const {
    const std::lock_guard lock(mutex_);
    return roster_.cause();
  }
  std::vector<Failure> consequences() const {
    const std::lock_guard lock(mutex_);
    return roster_.consequences();
  }
  std::vector<RankStatus> ranks() const {
    const std::lock_guard lock(mutex_);
    return roster_.status(Clock::now());
  }
  std::optional<Failure> await_end() {
    const Clock::time_point deadline = Clock::now() + options_.join_timeout;
    if (options_.launches > 0) {
      const std::lock_guard lock(mutex_);
      roster_.launcher_is_done(0);
    }
    const auto has_ended = [&] {
      const std::lock_guard lock(mutex_);
      return roster_.cause() || roster_.is_all_done() ||
             (roster_.first_without_launcher() && Clock::now() >= deadline);
    };
    while (!has_ended()) std::this_thread::sleep_for(kTick);
    {
      const std::lock_guard lock(mutex_);
      if (!roster_.cause() && !roster_.is_all_done())
        roster_.add(roster_.never_launched(*roster_.first_without_launcher()));
    }
    // The others have heard of it when they have closed their connections.
    const Clock::time_point latest = Clock::now() + kLastWords;
    const auto others_know = [this] {
      const std::lock_guard lock(mutex_);
      return others_have_gone_;
    };
    while (!others_know() && Clock::now() < latest) std::this_thread::sleep_for(kTick);
    const std::lock_guard lock(mutex_);
    return roster_.cause();
  }
  std::size_t num_keys() const {
    const std::lock_guard lock(mutex_);
    return store_.num_keys();
  }
  void report_failure(Failure failure) {
    const std::lock_guard lock(mutex_);
    failure.message = printable(failure.message);
    roster_.add(std::move(failure));  // the next tick tells the ranks
  }

 private:
  struct Peer {
    std::shared_ptr<Connection> connection;
    Clock::time_point deadline;  // until it has joined, and once it is refused
    Handshake handshake;
    bool joined = false;
    Rank rank = -1;  // of a rank that has joined

    // A launcher, whose first rank is handshake.rank.
    bool launches() const { return joined && handshake.launches > 0; }
  };
  using PeerRef = std::list<Peer>::iterator;
  struct Leaving {
    Rank rank = 0;
    std::function<void()> reply;
  };

  void accept() {
    acceptor_.async_wait(tcp::acceptor::wait_read, [this](const error_code& error) {
      if (error) return;
      const std::lock_guard lock(mutex_);
      tcp::socket socket(io_);
      while (accept_one(acceptor_, socket)) {
        welcome_stranger(std::move(socket));
        socket = tcp::socket(io_);
      }
      // Out of descriptors: the connection stays where it is, and would wake this up at once.
      if (errno != EAGAIN && errno != EWOULDBLOCK) {
        accept_later_ = true;
        return;
      }
      accept();
    });
  }

  void welcome_stranger(tcp::socket socket) {
    make_room();
    peers_.push_back({.connection = std::make_shared<Connection>(std::move(socket), kMaxStrangerBytes),
                      .deadline = Clock::now() + options_.handshake_timeout,
                      .handshake = {}});
    const PeerRef peer = std::prev(peers_.end());
    // A peer leaves the list only in tick() and make_room(), after its connection was closed: no handler runs
    // then.
    peer->connection->start({.on_frame =
                                 [this, peer](const proto::RendezvousFrame& frame) {
                                   const std::lock_guard lock(mutex_);
                                   take(*peer, frame);
                                   announce();
                                 },
                             .on_error =
                                 [this, peer](const Error& error) {
                                   const std::lock_guard lock(mutex_);
                                   take_error(*peer, error);
                                   announce();
                                 },
                             .on_closed =
                                 [this, peer](const std::string& why) {
                                   const std::lock_guard lock(mutex_);
                                   lose(*peer, ErrorKind::peer_lost,
                                        str("its connection was ", why, " without a goodbye"));
                                   announce();
                                 }});
  }

  void make_room() {
    const auto launchers = std::ranges::count_if(peers_, [](const Peer& peer) { return peer.launches(); });
    const auto most =
        static_cast<std::size_t>(options_.world_size + launchers + std::max(options_.spare_connections, 1));
    if (peers_.size() < most) return;
    const auto oldest = std::ranges::find_if(peers_, [](const Peer& peer) { return !peer.joined; });
    oldest->connection->close();
    peers_.erase(oldest);
  }

  void take(Peer& peer, const proto::RendezvousFrame& frame) {
    const Message message = peer.connection->open(frame);
    if (peer.joined) return serve(peer, message);
    if (message.has_hello() && peer.handshake.server_nonce.empty()) return take_hello(peer, message.hello());
    if (message.has_join() && !peer.handshake.server_nonce.empty()) return take_join(peer);
    throw RendezvousError("the message does not belong to the first exchange");
  }

  // Of what a stranger says of itself, only that is answered which helps the owner of another job or version
  // and tells nothing.
  void take_hello(Peer& peer, const Message::Hello& hello) {
    if (hello.protocol_version() != kProtocolVersion) {
      return refuse(peer, ErrorKind::rendezvous,
                    str("protocol version ", hello.protocol_version(), ", but this server speaks ",
                        kProtocolVersion, "; use one version of the program on all machines"));
    }
    if (hello.job_id() != options_.job_id) {
      return refuse(peer, ErrorKind::rendezvous,
                    str("this endpoint belongs to another job than '", printable(hello.job_id()),
                        "'; give each job an endpoint of its own (port 0 takes a free one)"));
    }
    if (hello.nonce().size() != kNonceBytes) throw RendezvousError("the nonce has the wrong size");
    peer.handshake = {.protocol_version = hello.protocol_version(),
                      .job_id = hello.job_id(),
                      .rank = hello.rank(),
                      .world_size = hello.world_size(),
                      .host = hello.host(),
                      .pid = hello.pid(),
                      .launches = hello.launches(),
                      .rank_nonce = hello.nonce(),
                      .server_nonce = make_nonce()};
    Message answer;
    answer.mutable_challenge()->set_nonce(peer.handshake.server_nonce);
    peer.connection->send(answer);
    peer.connection->secure(Session(options_.token, peer.handshake, Side::server));
  }

  void take_join(Peer& peer) {
    const Handshake& claims = peer.handshake;
    const std::string host = printable(claims.host);
    const auto reason = claims.launches > 0
                            ? roster_.launcher_refusal(claims.rank, claims.launches, claims.world_size, host)
                            : roster_.refusal(claims.rank, claims.world_size);
    if (reason) {
      roster_.note_refusal(*reason);
      return refuse(peer, ErrorKind::rendezvous, *reason);
    }
    peer.joined = true;
    peer.connection->set_max_frame_bytes(kMaxFrameBytes);
    if (claims.launches > 0) {
      roster_.launcher_joins(claims.rank, claims.launches, host, claims.pid);
    } else {
      peer.rank = claims.rank;
      roster_.join(peer.rank, host, claims.pid, Clock::now());
    }
    Message answer;
    answer.mutable_welcome()->set_heartbeat_timeout_ms(options_.heartbeat_timeout.count());
    peer.connection->send(answer);
    if (roster_.cause()) tell(peer, *roster_.cause());
  }

  void refuse(Peer& peer, ErrorKind kind, const std::string& reason) {
    Message answer;
    answer.mutable_refusal()->set_kind(to_wire(kind));
    answer.mutable_refusal()->set_reason(reason);
    peer.connection->send_plain(answer);
    peer.connection->close_after_sending();
  }

  void serve(Peer& peer, const Message& message) {
    const Clock::time_point now = Clock::now();
    if (!peer.launches()) roster_.heartbeat(peer.rank, now);
    if (message.has_heartbeat()) return take_heartbeat(peer, message.heartbeat(), now);
    if (!message.has_request()) throw RendezvousError("a rank does not send this message");
    const Message::Request& request = message.request();
    const auto reply = [connection = peer.connection](Message::Answer answer) {
      Message out;
      if (answer.ByteSizeLong() > kMaxFrameBytes - 1024) {
        out.mutable_answer()->set_id(answer.id());
        out.mutable_answer()->set_kind(proto::INVALID_INPUT);
        out.mutable_answer()->set_reason("the answer does not fit into a frame; ask for less");
      } else {
        *out.mutable_answer() = std::move(answer);
      }
      connection->send(out);
    };
    Message::Answer done;
    done.set_id(request.id());
    if (peer.launches()) {
      if (request.has_goodbye()) {
        roster_.launcher_is_done(peer.handshake.rank);
        done_launchers_.push_back([reply, done] { reply(done); });
      } else {
        serve_launcher(peer, request, done);
        reply(done);
      }
    } else if (request.has_report()) {
      roster_.report(peer.rank, from_wire(request.report().kind(), ErrorKind::check_failed),
                     printable(request.report().reason()), now);
      reply(done);
    } else if (request.has_goodbye()) {
      take_goodbye(peer, request.goodbye(), now);
      leaving_.push_back({peer.rank, [reply, done] { reply(done); }});
      let_go();
    } else if (request.has_ask_status()) {
      for (const RankStatus& status : roster_.status(now)) to_wire(status, *done.add_ranks());
      reply(done);
    } else if (!roster_.cause()) {  // else the failure is on its way to the rank
      store_.handle(peer.rank, request, now, reply);
    }
  }

  // What it may ask is what it needs to name the cause, and to tell it.
  void serve_launcher(const Peer& peer, const Message::Request& request, Message::Answer& answer) {
    if (request.has_found()) {
      Failure failure = from_wire(request.found());
      const Rank first = peer.handshake.rank;
      if (failure.rank < first || failure.rank >= first + peer.handshake.launches)
        throw RendezvousError(
            str("a launcher reported rank ", failure.rank, ", which is not one of its own"));
      failure.host = printable(peer.handshake.host);
      roster_.add(std::move(failure));
    } else if (request.has_ask_status()) {
      for (const RankStatus& status : roster_.status(Clock::now())) to_wire(status, *answer.add_ranks());
    } else {
      throw RendezvousError("a launcher does not send this request");
    }
  }

  void take_heartbeat(Peer& peer, const Message::Heartbeat& heartbeat, Clock::time_point now) {
    take_points(peer, heartbeat.points(), now);
    if (heartbeat.has_latest() && !peer.launches()) {
      const Progress latest = from_wire(heartbeat.latest());
      roster_.progress(peer.rank, latest);
      stall_.begun(peer.rank, latest, now);
    }
    if (!peer.launches()) stall_.add(peer.rank, from_wire(heartbeat.activity()), now);
    find_divergence(now);
    Message answer;
    answer.mutable_heartbeat();
    peer.connection->send(answer);
  }

  void take_points(const Peer& peer, const google::protobuf::RepeatedPtrField<Message::Progress>& points,
                   Clock::time_point now) {
    if (peer.launches()) return;
    for (const Message::Progress& in : points) {
      const Progress point = from_wire(in);
      roster_.progress(peer.rank, point);
      stall_.begun(peer.rank, point, now);
      divergence_.add(peer.rank, point, now);
    }
  }

  void take_goodbye(const Peer& peer, const Message::Goodbye& goodbye, Clock::time_point now) {
    take_points(peer, goodbye.points(), now);
    std::vector<Progress> last;
    for (const Message::Progress& in : goodbye.last()) last.push_back(from_wire(in));
    divergence_.end(peer.rank, last, now);
    find_divergence(now);
  }

  // Those whose groups have all ended, and agree. After a failure nobody is kept: all hear of it first.
  void let_go() {
    std::erase_if(leaving_, [&](const Leaving& leaving) {
      if (!roster_.cause() && !divergence_.all_ended_with(leaving.rank)) return false;
      roster_.leave(leaving.rank);
      stall_.forget(leaving.rank);
      store_.forget(leaving.rank);
      if (!roster_.cause()) leaving.reply();
      return true;
    });
  }

  void find_divergence(Clock::time_point now) {
    if (roster_.cause()) return;
    if (auto failure = divergence_.find(now)) roster_.add(std::move(*failure));
  }

  void find_stall(Clock::time_point now) {
    if (roster_.cause()) return;
    const auto last_begun = [this](Rank rank, const std::string& group) {
      return roster_.last_begun(rank, group);
    };
    if (auto failure = stall_.find(last_begun, now)) return roster_.add(std::move(*failure));
    for (std::string& note : stall_.take_notes(last_begun, now)) {
      if (options_.on_note)
        boost::asio::post(io_, [call = options_.on_note, text = std::move(note)] { call(text); });
    }
  }

  void take_error(Peer& peer, const Error& error) {
    if (peer.joined) {
      lose(peer, error.kind(), str("its connection was closed here: ", error.what()));
    } else if (error.kind() == ErrorKind::authentication) {
      refuse(peer, error.kind(),
             str("wrong token for job '", printable(peer.handshake.job_id),
                 "'; pass the token that the launcher made, or the same token file on all machines"));
    } else {
      refuse(peer, error.kind(), error.what());
    }
  }

  void lose(Peer& peer, ErrorKind kind, const std::string& message) {
    if (!peer.joined) return;
    if (peer.launches()) return roster_.lose_launcher(peer.handshake.rank, message, Clock::now());
    roster_.lose(peer.rank, kind, message, Clock::now());
    stall_.forget(peer.rank);
    store_.forget(peer.rank);
  }

  // Tells everybody of the first failure, once.
  void announce() {
    if (announced_ || !roster_.cause()) return;
    announced_ = true;
    const Failure& cause = *roster_.cause();
    store_.forget_all();
    for (Peer& peer : peers_) {
      if (peer.joined) tell(peer, cause);
    }
    // Later, without the lock: the owner may ask this server about its ranks.
    if (options_.on_failure)
      boost::asio::post(io_, [call = options_.on_failure, failure = cause] { call(failure); });
  }

  void tell(Peer& peer, const Failure& failure) {
    Message message;
    to_wire(failure, *message.mutable_failure());
    peer.connection->send(message);
  }

  void tick() {
    timer_.expires_after(kTick);
    timer_.async_wait([this](const error_code& error) {
      if (error) return;
      const std::lock_guard lock(mutex_);
      check();
      tick();
    });
  }

  void check() {
    const Clock::time_point now = Clock::now();
    const auto gap = std::chrono::duration_cast<std::chrono::milliseconds>(now - last_check_);
    if (gap > options_.heartbeat_timeout / 4) roster_.forgive(gap), stall_.forgive(gap);
    last_check_ = now;
    roster_.check(now);
    find_divergence(now);
    find_stall(now);
    announce();
    if (!done_launchers_.empty() && roster_.is_all_done()) {
      for (const auto& answer : done_launchers_) answer();
      done_launchers_.clear();
    }
    others_have_gone_ =
        (announced_ || roster_.is_all_done()) && std::ranges::none_of(peers_, [](const Peer& peer) {
          return peer.launches() && peer.connection->is_open();
        });
    store_.expire(now);
    drop_closed(now);
    if (accept_later_) {
      accept_later_ = false;
      accept();
    }
  }

  void drop_closed(Clock::time_point now) {
    for (auto peer = peers_.begin(); peer != peers_.end();) {
      const bool overdue = now > peer->deadline && (!peer->joined || !peer->connection->is_open());
      if (overdue) peer->connection->close();
      peer = overdue ? peers_.erase(peer) : std::next(peer);
    }
  }

  const ServerOptions options_;
  boost::asio::io_context io_{1};
  tcp::acceptor acceptor_;
  const std::string address_;
  const std::uint16_t port_;
  boost::asio::steady_timer timer_;
  mutable std::mutex mutex_;  // of all below
  Roster roster_;
  Store store_;
  DivergenceCheck divergence_;
  StallCheck stall_;
  std::list<Peer> peers_;                              // oldest first
  std::vector<std::function<void()>> done_launchers_;  // the same, of launchers
  std::vector<Leaving> leaving_;                       // have said goodbye, and wait for others
  bool announced_ = false, accept_later_ = false;
  bool others_have_gone_ = false;  // launchers, after the end was told
  Clock::time_point last_check_ = Clock::now();
  std::thread thread_;
};

RendezvousServer::RendezvousServer(ServerOptions options)
    : impl_(std::make_unique<Impl>(std::move(options))) {}
RendezvousServer::~RendezvousServer() = default;
const std::string& RendezvousServer::address() const { return impl_->address(); }
std::uint16_t RendezvousServer::port() const { return impl_->port(); }
std::string RendezvousServer::endpoint() const { return endpoint_text(impl_->address(), impl_->port()); }
std::optional<Failure> RendezvousServer::first_failure() const { return impl_->first_failure(); }
std::vector<Failure> RendezvousServer::consequences() const { return impl_->consequences(); }
std::vector<RankStatus> RendezvousServer::ranks() const { return impl_->ranks(); }
std::optional<Failure> RendezvousServer::await_end() { return impl_->await_end(); }
std::size_t RendezvousServer::num_keys() const { return impl_->num_keys(); }
void RendezvousServer::report_failure(Failure failure) { impl_->report_failure(std::move(failure)); }

}  // namespace cp::runtime
