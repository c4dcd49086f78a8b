#include "runtime/rendezvous/client.h"

#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>

#include "runtime/rendezvous/connection.h"
#include "runtime/rendezvous/endpoint.h"
#include "runtime/rendezvous/progress_log.h"
#include "runtime/this_host.h"

namespace cp::runtime {
namespace {

using boost::asio::ip::tcp;
using boost::system::error_code;
using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;

constexpr Milliseconds kFirstRetry{5}, kLastRetry{250};
constexpr Milliseconds kToBeHeard{2'000};  // to be heard, when there is nobody left to ask

void refuse_long(const std::string& key, std::string_view value) {
  if (key.size() > kMaxKeyBytes)
    throw InvalidInput(
        str("a key has ", key.size(), " bytes, but the rendezvous takes at most ", kMaxKeyBytes));
  if (value.size() > kMaxValueBytes) {
    throw InvalidInput(str("key '", key, "': the value has ", value.size(),
                           " bytes, but the rendezvous takes at most ", kMaxValueBytes,
                           "; split it over several keys"));
  }
}

// As many as surely fit a frame, half of which they may take.
void append(const std::vector<Progress>& points, google::protobuf::RepeatedPtrField<Message::Progress>& to) {
  std::size_t bytes = 0;
  for (const Progress& point : points) {
    bytes += point.group.size() + point.operation.size() + 64;
    if (bytes > kMaxValueBytes / 2) return;
    to_wire(point, *to.Add());
  }
}

}  // namespace

class RendezvousClient::Impl {
 public:
  explicit Impl(ClientOptions options)
      : options_(std::move(options)),
        server_(endpoint_text(options_.host, options_.port)),
        self_(options_.launches == 0
                  ? str("rank ", options_.rank)
                  : str("the launcher of ", options_.launches, " ranks from ", options_.rank, " on")),
        deadline_(Clock::now() + options_.timeout),
        timer_(io_) {
    refuse_bad();
    boost::asio::post(io_, [this] { resolve(); });  // before it runs: it ends when there is nothing to do
    thread_ = std::thread([this] { io_.run(); });
    std::unique_lock lock(mutex_);
    changed_.wait_until(lock, deadline_, [this] { return joined_ || refusal_; });
    if (joined_) return;
    const std::string reason = last_problem_;
    const auto refusal = refusal_;
    lock.unlock();
    stop();
    if (refusal) throw_error(refusal->kind(), refusal->message(), refusal->facts());
    throw RendezvousError(str(self_, " cannot join at ", server_, " within ", duration_text(options_.timeout),
                              ": ", reason, "; is the launcher (or rank 0) running there?"));
  }

  ~Impl() { stop(); }

  const ClientOptions& options() const { return options_; }

  Message::Answer call(Message::Request request, TimeLimit limit) {
    if (const std::size_t bytes = request.ByteSizeLong(); bytes > kMaxFrameBytes - 1024) {
      throw InvalidInput(str("the request has ", bytes, " bytes, but a frame of the rendezvous holds ",
                             kMaxFrameBytes - 1024));
    }
    const Milliseconds patience = limit.value_or(options_.timeout);
    request.set_timeout_ms(patience.count());
    std::unique_lock lock(mutex_);
    if (gone_ || leaving_)
      throw RendezvousError(str(self_, " has left the rendezvous, and may ask nothing more"));
    if (failure_) throw PeerLost(failure_text(), facts_of(*failure_));
    const std::uint64_t id = next_id_++;
    request.set_id(id);
    Call& waiting = calls_[id];
    send(std::move(request));
    // The server keeps the time and knows who is missing; only a server that is gone does not answer.
    const Clock::time_point latest = Clock::now() + patience + heartbeat_timeout_ + kToBeHeard;
    changed_.wait_until(lock, latest, [&] { return waiting.answer || failure_; });
    const auto answer = std::move(waiting.answer);
    calls_.erase(id);
    if (!answer && failure_) throw PeerLost(failure_text(), facts_of(*failure_));
    if (!answer) throw Timeout(str("the rendezvous at ", server_, " does not answer ", self_));
    if (answer->kind() != proto::NO_ERROR)
      throw_error(from_wire(answer->kind(), ErrorKind::rendezvous), printable(answer->reason()));
    return *answer;
  }

  // Without a deadline: the other members may compute for long, and one that is lost is a failure.
  void goodbye() {
    Message::Request request;
    append(log_.take(), *request.mutable_goodbye()->mutable_points());
    append(log_.latest_of_groups(), *request.mutable_goodbye()->mutable_last());
    std::unique_lock lock(mutex_);
    if (gone_ || leaving_) return;
    leaving_ = true;
    if (!lost_server_) {
      goodbye_id_ = next_id_++;
      request.set_id(*goodbye_id_);
      send(std::move(request));
      changed_.wait(lock, [&] { return gone_ || failure_; });
      if (gone_) return;
    }
    if (failure_ && is_own(*failure_)) throw_error(failure_->kind, failure_text(), facts_of(*failure_));
    if (failure_) throw PeerLost(failure_text(), facts_of(*failure_));
  }

  // Like call(), for what must be said even when the job has failed.
  void say(Message::Request request) {
    std::unique_lock lock(mutex_);
    if (gone_ || lost_server_) return;
    const std::uint64_t id = next_id_++;
    request.set_id(id);
    Call& waiting = calls_[id];
    send(std::move(request));
    if (std::this_thread::get_id() != thread_.get_id())
      changed_.wait_for(lock, kToBeHeard, [&] { return waiting.answer || lost_server_; });
    calls_.erase(id);
  }

  void set_progress(std::string_view group, std::int64_t sequence, std::string_view operation,
                    const Digest& digest, std::int64_t step) {
    log_.set(group, sequence, operation, digest, step);
  }

  void beat_now() {
    boost::asio::post(io_, [this] { send_heartbeat(); });
  }

  void set_activity(std::function<Activity()> source) {
    const std::lock_guard asking(activity_mutex_);
    activity_ = std::move(source);
  }

  void on_failure(std::function<void(const Failure&)> handler) {
    const std::lock_guard calling(handler_mutex_);
    std::optional<Failure> failure;
    {
      const std::lock_guard lock(mutex_);
      failure = failure_;
    }
    handler_ = std::move(handler);
    if (failure && handler_) std::exchange(handler_, {})(*failure);
  }

  std::optional<Failure> failure() const {
    const std::lock_guard lock(mutex_);
    return failure_;
  }

 private:
  struct Call {
    std::optional<Message::Answer> answer;
  };

  void refuse_bad() const {
    if (options_.token.size() < kMinTokenBytes) {
      throw InvalidInput(
          str("the token has ", options_.token.size(), " characters; use at least ", kMinTokenBytes));
    }
    if (options_.job_id.size() > kMaxKeyBytes)
      throw InvalidInput("the job id is longer than 1 KiB; use a shorter one");
  }

  void stop() {
    io_.stop();
    if (thread_.joinable()) thread_.join();
  }

  // ---- on the client's thread: joining

  // A name may be known only later, as those of machines that start together.
  void resolve() {
    error_code error;
    tcp::resolver resolver(io_);
    const auto found = resolver.resolve(options_.host, str(options_.port), error);
    if (error) return retry(str("host ", options_.host, ": ", error.message()));
    endpoints_.assign(found.begin(), found.end());
    connect(0);
  }

  void connect(std::size_t index) {
    auto socket = std::make_shared<tcp::socket>(make_socket(io_, endpoints_[index]));
    socket->async_connect(endpoints_[index], [this, socket, index](const error_code& error) {
      if (!error) return say_hello(std::move(*socket));
      if (index + 1 < endpoints_.size()) return connect(index + 1);
      retry(error.message());
    });
  }

  void retry(const std::string& problem) {
    {
      const std::lock_guard lock(mutex_);
      last_problem_ = problem;
    }
    connection_.reset();
    timer_.expires_after(retry_after_);
    retry_after_ = std::min(retry_after_ * 2, kLastRetry);
    timer_.async_wait([this](const error_code& error) {
      if (!error) resolve();
    });
  }

  void say_hello(tcp::socket socket) {
    connection_ = std::make_shared<Connection>(std::move(socket), kMaxFrameBytes);
    handshake_ = {.job_id = options_.job_id,
                  .rank = options_.rank,
                  .world_size = options_.world_size,
                  .host = host_name(),
                  .pid = getpid(),
                  .launches = options_.launches,
                  .rank_nonce = make_nonce(),
                  .server_nonce = {}};
    connection_->start({.on_frame = [this](const proto::RendezvousFrame& frame) { take(frame); },
                        .on_error = [this](const Error& error) { take_error(error); },
                        .on_closed = [this](const std::string& why) { closed(why); }});
    Message message;
    Message::Hello& hello = *message.mutable_hello();
    hello.set_protocol_version(handshake_.protocol_version);
    hello.set_job_id(handshake_.job_id);
    hello.set_rank(handshake_.rank);
    hello.set_world_size(handshake_.world_size);
    hello.set_nonce(handshake_.rank_nonce);
    hello.set_host(handshake_.host);
    hello.set_pid(handshake_.pid);
    hello.set_launches(handshake_.launches);
    connection_->send(message);
  }

  void take(const proto::RendezvousFrame& frame) {
    if (is_joined()) return serve(connection_->open(frame));
    // A refusal comes without a seal: the server may not share the token, or the version.
    if (frame.mac().empty()) {
      const Message message = parse_message(frame.message());
      if (message.has_refusal()) {
        return refused(from_wire(message.refusal().kind(), ErrorKind::rendezvous),
                       str("the rendezvous at ", server_, " refuses ", self_, ": ",
                           printable(message.refusal().reason())));
      }
      if (message.has_challenge() && handshake_.server_nonce.empty())
        return take_challenge(message.challenge());
    }
    const Message message = connection_->open(frame);
    if (!message.has_welcome()) throw RendezvousError("the message does not belong to the first exchange");
    take_welcome(message.welcome());
  }

  void take_challenge(const Message::Challenge& challenge) {
    if (challenge.nonce().size() != kNonceBytes) throw RendezvousError("the nonce has the wrong size");
    handshake_.server_nonce = challenge.nonce();
    connection_->secure(Session(options_.token, handshake_, Side::rank));
    Message message;
    message.mutable_join();
    connection_->send(message);
  }

  void take_welcome(const Message::Welcome& welcome) {
    const std::lock_guard lock(mutex_);
    heartbeat_timeout_ =
        Milliseconds(std::clamp<std::int64_t>(welcome.heartbeat_timeout_ms(), 40, 86'400'000));
    joined_ = true;
    heard_ = last_beat_ = Clock::now();
    changed_.notify_all();
    beat_later();
  }

  void take_error(const Error& error) {
    if (is_joined()) return lose_server(str("sent a message that cannot be trusted: ", error.what()));
    if (error.kind() == ErrorKind::authentication) {
      return refused(error.kind(), str("the rendezvous at ", server_, " does not know the token of job '",
                                       options_.job_id, "'; is it the right endpoint?"));
    }
    refused(ErrorKind::rendezvous,
            str("the program that listens at ", server_, " is not a rendezvous: ", error.what()));
  }

  void refused(ErrorKind kind, const std::string& reason) {
    connection_->close();
    const std::lock_guard lock(mutex_);
    if (!refusal_) refusal_.emplace(kind, reason);
    changed_.notify_all();
  }

  void closed(const std::string& why) {
    if (is_joined()) return lose_server(str("is gone: its connection was ", why));
    retry(str("the connection was ", why));
  }

  // ---- on the client's thread: the job

  bool is_joined() const {
    const std::lock_guard lock(mutex_);
    return joined_;
  }

  void serve(const Message& message) {
    heard_ = Clock::now();
    if (message.has_answer()) {
      const std::lock_guard lock(mutex_);
      if (const auto waiting = calls_.find(message.answer().id()); waiting != calls_.end())
        waiting->second.answer = message.answer();
      // Here, since the server may close the connection right behind it.
      if (goodbye_id_ == message.answer().id() && !failure_) gone_ = true;
      changed_.notify_all();
    } else if (message.has_failure()) {
      fail(from_wire(message.failure()));
    }
  }

  void beat_later() {
    const Milliseconds interval = heartbeat_timeout_ / 4;
    // Sooner where the server's time ends before the next beat.
    timer_.expires_at(std::min(Clock::now() + interval, heard_ + heartbeat_timeout_));
    timer_.async_wait([this, interval](const error_code& error) {
      if (error) return;
      const Clock::time_point now = Clock::now();
      if (now - last_beat_ > 2 * interval) heard_ = now;  // it was this process that stood still
      last_beat_ = now;
      if (now - heard_ >= heartbeat_timeout_)
        return lose_server(str("has not answered for ", duration_text(heartbeat_timeout_)));
      send_heartbeat();
      beat_later();
    });
  }

  void send_heartbeat() {
    if (!connection_ || !connection_->is_open()) return;
    Message message;
    Message::Heartbeat& heartbeat = *message.mutable_heartbeat();
    append(log_.take(), *heartbeat.mutable_points());
    to_wire(log_.latest(), *heartbeat.mutable_latest());
    {
      const std::lock_guard asking(activity_mutex_);
      if (activity_) to_wire(activity_(), *heartbeat.mutable_activity());
    }
    connection_->send(message);
  }

  void lose_server(const std::string& what) {
    connection_->close();
    timer_.cancel();
    {
      const std::lock_guard lock(mutex_);
      lost_server_ = true;
      changed_.notify_all();
      if (gone_) return;
    }
    fail({ErrorKind::peer_lost, -1, options_.host, 0, str("the rendezvous at ", server_, " ", what), {}});
  }

  void fail(const Failure& failure) {
    {
      const std::lock_guard lock(mutex_);
      if (failure_) return;
      failure_ = failure;
      changed_.notify_all();
    }
    const std::lock_guard calling(handler_mutex_);
    if (handler_) std::exchange(handler_, {})(failure);
  }

  // ---- with the lock

  void send(Message::Request request) {
    boost::asio::post(io_, [this, request = std::move(request)] {
      Message message;
      *message.mutable_request() = request;
      connection_->send(message);
    });
  }

  bool is_own(const Failure& failure) const {
    return options_.launches == 0 && failure.rank == options_.rank;
  }

  std::string failure_text() const {
    return is_own(*failure_) ? str("this rank has failed: ", failure_->message)
                             : str("the job has failed: ", to_string(*failure_));
  }

  const ClientOptions options_;
  const std::string server_, self_;
  const Clock::time_point deadline_;
  boost::asio::io_context io_{1};

  // Of the client's thread.
  boost::asio::steady_timer timer_;
  std::vector<tcp::endpoint> endpoints_;
  Milliseconds retry_after_ = kFirstRetry;
  std::shared_ptr<Connection> connection_;
  Handshake handshake_;
  Clock::time_point heard_, last_beat_;

  ProgressLog log_;
  std::mutex activity_mutex_;
  std::function<Activity()> activity_;
  std::mutex handler_mutex_;  // before mutex_
  std::function<void(const Failure&)> handler_;

  mutable std::mutex mutex_;  // of all below
  std::condition_variable changed_;
  bool joined_ = false, lost_server_ = false;
  bool leaving_ = false, gone_ = false;  // it has said goodbye, and has been answered
  std::optional<std::uint64_t> goodbye_id_;
  Milliseconds heartbeat_timeout_{30'000};  // changes once, before joined_
  std::optional<Error> refusal_;
  std::string last_problem_ = "no answer";
  std::optional<Failure> failure_;
  std::uint64_t next_id_ = 1;
  std::map<std::uint64_t, Call> calls_;
  std::thread thread_;
};

RendezvousClient::RendezvousClient(ClientOptions options)
    : impl_(std::make_unique<Impl>(std::move(options))) {}
RendezvousClient::~RendezvousClient() = default;

Rank RendezvousClient::rank() const { return impl_->options().rank; }
std::int32_t RendezvousClient::world_size() const { return impl_->options().world_size; }

void RendezvousClient::set(const std::string& key, std::string_view value) {
  refuse_long(key, value);
  Message::Request request;
  request.mutable_set()->set_key(key);
  request.mutable_set()->set_value(std::string(value));
  impl_->call(std::move(request), {});
}

std::string RendezvousClient::get(const std::string& key, TimeLimit limit) {
  Message::Request request;
  request.mutable_wait()->add_keys(key);
  request.mutable_wait()->set_get(true);
  const Message::Answer answer = impl_->call(std::move(request), limit);
  return answer.values_size() > 0 ? answer.values(0) : std::string();
}

void RendezvousClient::wait(const std::vector<std::string>& keys, TimeLimit limit) {
  Message::Request request;
  for (const std::string& key : keys) request.mutable_wait()->add_keys(key);
  request.mutable_wait()->set_get(false);
  impl_->call(std::move(request), limit);
}

std::int64_t RendezvousClient::add(const std::string& key, std::int64_t amount) {
  refuse_long(key, "");
  Message::Request request;
  request.mutable_add()->set_key(key);
  request.mutable_add()->set_amount(amount);
  return impl_->call(std::move(request), {}).count();
}

void RendezvousClient::barrier(const std::string& name, TimeLimit limit) {
  refuse_long(name, "");
  Message::Request request;
  request.mutable_gather()->set_name(name);
  request.mutable_gather()->set_barrier(true);
  impl_->call(std::move(request), limit);
}

std::vector<std::string> RendezvousClient::all_gather(const std::string& name, std::string_view bytes,
                                                      TimeLimit limit) {
  return all_gather({}, name, bytes, limit);
}

std::vector<std::string> RendezvousClient::all_gather(const std::vector<Rank>& ranks, const std::string& name,
                                                      std::string_view bytes, TimeLimit limit) {
  refuse_long(name, bytes);
  Message::Request request;
  for (const Rank rank : ranks) request.mutable_gather()->add_ranks(rank);
  request.mutable_gather()->set_name(name);
  request.mutable_gather()->set_data(std::string(bytes));
  const Message::Answer answer = impl_->call(std::move(request), limit);
  return {answer.values().begin(), answer.values().end()};
}

void RendezvousClient::free_keys(const std::string& prefix, std::size_t readers) {
  refuse_long(prefix, "");
  Message::Request request;
  request.mutable_free()->set_prefix(prefix);
  request.mutable_free()->set_readers(static_cast<std::uint32_t>(readers));
  impl_->call(std::move(request), {});
}

void RendezvousClient::set_progress(std::string_view group, std::int64_t sequence, std::string_view operation,
                                    const Digest& digest, std::int64_t step) {
  impl_->set_progress(group, sequence, operation, digest, step);
}

void RendezvousClient::tell_progress() { impl_->beat_now(); }

std::vector<RankStatus> RendezvousClient::ranks(TimeLimit limit) {
  impl_->beat_now();
  Message::Request request;
  request.mutable_ask_status();
  const Message::Answer answer = impl_->call(std::move(request), limit);
  std::vector<RankStatus> all;
  for (const Message::Status& status : answer.ranks()) all.push_back(from_wire(status));
  return all;
}

void RendezvousClient::set_activity(std::function<Activity()> source) {
  impl_->set_activity(std::move(source));
}

void RendezvousClient::on_failure(std::function<void(const Failure&)> handler) {
  impl_->on_failure(std::move(handler));
}

std::optional<Failure> RendezvousClient::failure() const { return impl_->failure(); }

void RendezvousClient::report_failure(ErrorKind kind, const std::string& message) {
  impl_->beat_now();  // where it was
  Message::Request request;
  request.mutable_report()->set_kind(to_wire(kind));
  request.mutable_report()->set_reason(printable(message));
  impl_->say(std::move(request));
}

void RendezvousClient::report_found(const Failure& failure) {
  Message::Request request;
  to_wire(failure, *request.mutable_found());
  impl_->say(std::move(request));
}

void RendezvousClient::goodbye() { impl_->goodbye(); }

}  // namespace cp::runtime
