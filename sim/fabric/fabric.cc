#include "sim/fabric/fabric.h"

#include <utility>

#include "shared/base/error.h"
#include "sim/fabric/fabric_device.h"
#include "sim/fabric/rank_fibers.h"
#include "sim/fabric/rank_threads.h"
#include "sim/fabric/world.h"

namespace cp::sim {

namespace {

std::unique_ptr<RankCarrier> make_carrier(int world_size, const FabricOptions& options) {
  if (kHasFibers && options.schedule == Schedule::baton && options.fibers)
    return std::make_unique<RankFibers>(world_size, options.stack_bytes);
  return std::make_unique<RankThreads>(world_size, options.stack_bytes);
}

}  // namespace

class Fabric::Impl {
 public:
  Impl(int world_size, FabricOptions options);

  World& world() { return world_; }
  std::vector<RankTrace>& traces();
  void clear_traces();
  void run(const std::function<void(Rank, Device&)>& body);

 private:
  void run_body(Rank rank, const std::function<void(Rank, Device&)>& body);

  std::unique_ptr<RankCarrier> carrier_;
  World world_;
  std::vector<RankTrace> traces_;
  bool is_running_ = false;
};

Fabric::Impl::Impl(int world_size, FabricOptions options)
    : carrier_(make_carrier(world_size, options)), world_(world_size, std::move(options), carrier_->baton()) {
  traces_.resize(static_cast<std::size_t>(world_size));
  clear_traces();
}

void Fabric::Impl::run_body(Rank rank, const std::function<void(Rank, Device&)>& body) {
  Scheduler& scheduler = world_.scheduler();
  FabricDevice& device = world_.device(rank);
  scheduler.enter(rank);
  try {
    body(rank, device);
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
  CP_INVARIANT(!is_running_, "Fabric::run inside of a run");
  is_running_ = true;
  world_.begin_run();
  carrier_->run([&](Rank rank) { run_body(rank, body); });
  is_running_ = false;
  if (std::exception_ptr error = world_.end_run()) std::rethrow_exception(error);
}

// While a run is on, the logs belong to the ranks' threads.
std::vector<RankTrace>& Fabric::Impl::traces() {
  if (is_running_) return traces_;
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
  if (world_size < 1) throw InvalidInput(str("a fabric cannot have ", world_size, " ranks; use at least 1"));
  for (const InjectedFault& fault : options.faults) {
    if (is_of_program(fault.kind))
      throw InvalidInput(str("the fabric cannot make the fault ", name(fault.kind),
                             ", which damages a program; damage the rank's plan with damage_program()"));
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
