#include "sim/fabric/fabric.h"

#include <atomic>
#include <cstring>
#include <utility>

#include <pthread.h>

#include "shared/base/error.h"
#include "sim/fabric/fabric_device.h"
#include "sim/fabric/futex.h"
#include "sim/fabric/world.h"

namespace cp::sim {

// The threads: they sleep between runs, and wake all at once.
class Fabric::Impl {
 public:
  Impl(int world_size, FabricOptions options);
  ~Impl();

  World& world() { return world_; }
  std::vector<RankTrace>& traces();
  void clear_traces();
  void run(const std::function<void(Rank, Device&)>& body);

 private:
  struct Start {
    Impl* impl;
    Rank rank;
  };
  static void* thread_main(void* start);
  void start_threads(std::size_t stack_bytes);
  void stop_threads();
  void run_body(Rank rank);

  World world_;
  std::vector<RankTrace> traces_;
  std::vector<Start> starts_;
  std::vector<pthread_t> threads_;
  const std::function<void(Rank, Device&)>* body_ = nullptr;  // null at a start: the threads end
  alignas(64) FutexWord runs_{0};                             // runs started so far
  alignas(64) FutexWord busy_{0};                             // ranks that have not ended the current run
};

Fabric::Impl::Impl(int world_size, FabricOptions options) : world_(world_size, std::move(options)) {
  traces_.resize(static_cast<std::size_t>(world_size));
  clear_traces();
  start_threads(world_.options().stack_bytes);
}

Fabric::Impl::~Impl() { stop_threads(); }

void Fabric::Impl::start_threads(std::size_t stack_bytes) {
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, stack_bytes);
  starts_.reserve(static_cast<std::size_t>(world_.size()));
  int error = 0;
  for (Rank rank = 0; rank < world_.size() && error == 0; ++rank) {
    starts_.push_back({this, rank});
    pthread_t thread{};
    error = pthread_create(&thread, &attributes, &thread_main, &starts_.back());
    if (error == 0) threads_.push_back(thread);
  }
  pthread_attr_destroy(&attributes);
  if (error == 0) return;
  const std::size_t started = threads_.size();
  stop_threads();
  throw InvalidInput(str("a fabric of ", world_.size(), " ranks: only ", started,
                         " threads could be started: ", std::strerror(error),
                         "; raise the limit on processes (ulimit -u), or use fewer ranks"));
}

void Fabric::Impl::stop_threads() {
  body_ = nullptr;
  runs_.fetch_add(1, std::memory_order_release);
  futex_wake_all(runs_);
  for (const pthread_t thread : threads_) pthread_join(thread, nullptr);
}

void* Fabric::Impl::thread_main(void* start) {
  const auto [impl, rank] = *static_cast<Start*>(start);
  for (std::uint32_t run = 0;; ++run) {
    while (impl->runs_.load(std::memory_order_acquire) == run) futex_wait(impl->runs_, run);
    if (impl->body_ == nullptr) return nullptr;
    impl->run_body(rank);
    if (impl->busy_.fetch_sub(1, std::memory_order_acq_rel) == 1) futex_wake_one(impl->busy_);
  }
}

void Fabric::Impl::run_body(Rank rank) {
  Scheduler& scheduler = world_.scheduler();
  FabricDevice& device = world_.device(rank);
  scheduler.enter(rank);
  try {
    (*body_)(rank, device);
    if (!device.idle()) throw InvalidInput(str("the body of rank ", rank, " returned without synchronize"));
  } catch (const RankDied&) {
    // Others find out when they wait for it.
  } catch (...) {
    world_.fail(rank, std::current_exception());
  }
  world_.depart(rank);
  if (scheduler.finish(rank) == Progress::stuck) world_.fail_deadlocked(rank);
  scheduler.hand_over(rank);
}

void Fabric::Impl::run(const std::function<void(Rank, Device&)>& body) {
  CP_INVARIANT(body_ == nullptr, "Fabric::run inside of a run");
  body_ = &body;
  busy_.store(static_cast<std::uint32_t>(world_.size()), std::memory_order_relaxed);
  world_.begin_run();
  runs_.fetch_add(1, std::memory_order_release);
  futex_wake_all(runs_);
  for (std::uint32_t busy = 0; (busy = busy_.load(std::memory_order_acquire)) != 0;) futex_wait(busy_, busy);
  body_ = nullptr;
  if (std::exception_ptr error = world_.end_run()) std::rethrow_exception(error);
}

// While a run is on, the logs belong to the ranks' threads.
std::vector<RankTrace>& Fabric::Impl::traces() {
  if (body_ != nullptr) return traces_;
  for (RankTrace& trace : traces_) world_.device(trace.rank).log().flush_to(trace.observed);
  return traces_;
}

void Fabric::Impl::clear_traces() {
  for (std::size_t rank = 0; rank < traces_.size(); ++rank) {
    traces_[rank] = RankTrace{.rank = static_cast<Rank>(rank), .issued = {}, .observed = {}, .digests = {}};
    world_.device(static_cast<Rank>(rank)).log().clear();
  }
  world_.turns().clear();
  world_.restart_sequences();
}

Fabric::Fabric(int world_size, FabricOptions options) {
  if (world_size < 1) throw InvalidInput(str("a fabric of ", world_size, " ranks; use at least 1"));
  for (const InjectedFault& fault : options.faults) {
    if (is_of_program(fault.kind))
      throw InvalidInput(str("the fabric has no fault ", name(fault.kind),
                             ", which is of a program; damage the rank's plan, with damage_program()"));
  }
  impl_ = std::make_unique<Impl>(world_size, std::move(options));
}
Fabric::~Fabric() = default;

int Fabric::world_size() const { return impl_->world().size(); }
void Fabric::run(const std::function<void(Rank, Device&)>& body) { impl_->run(body); }
std::vector<RankTrace>& Fabric::traces() { return impl_->traces(); }
void Fabric::clear_traces() { impl_->clear_traces(); }
std::vector<bool> Fabric::injected() const { return impl_->world().injected(); }
const std::vector<Turn>& Fabric::turns() const { return impl_->world().turns(); }

}  // namespace cp::sim
