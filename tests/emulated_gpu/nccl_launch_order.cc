#include "tests/emulated_gpu/nccl_launch_order.h"

#include <chrono>
#include <cstdlib>
#include <map>
#include <memory>
#include <string_view>
#include <utility>

namespace cp::emulated {
namespace {

constexpr std::chrono::milliseconds kOrderPoll{20};

bool is_set(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && std::string_view(value) == "1";
}

}  // namespace

NcclLaunchOrder::NcclLaunchOrder()
    : mode_(is_set("CP_EMULATED_NCCL_CONCURRENT")  ? Mode::concurrent
            : is_set("NCCL_LAUNCH_ORDER_IMPLICIT") ? Mode::in_order
                                                   : Mode::one_at_a_time) {}

std::uint64_t NcclLaunchOrder::enqueue() {
  const std::lock_guard lock(mutex_);
  left_.insert(issued_);
  return issued_++;
}

bool NcclLaunchOrder::may_run(std::uint64_t turn) const {
  switch (mode_) {
    case Mode::in_order:
      return *left_.begin() == turn;
    case Mode::one_at_a_time:
      return !busy_;
    case Mode::concurrent:
      break;
  }
  return true;
}

void NcclLaunchOrder::run(std::uint64_t turn, const std::function<bool()>& given_up,
                          const std::function<void()>& work) {
  std::unique_lock lock(mutex_);
  bool dropped = false;
  while (!may_run(turn) && !dropped) {
    changed_.wait_for(lock, kOrderPoll);
    lock.unlock();
    dropped = given_up();
    lock.lock();
  }
  if (!dropped) {
    busy_ = true;
    lock.unlock();
    work();
    lock.lock();
    busy_ = false;
  }
  left_.erase(turn);
  changed_.notify_all();
}

NcclLaunchOrder& nccl_launch_order(int device, std::uint64_t host) {
  static auto& mutex = *new std::mutex;
  static auto& orders = *new std::map<std::pair<int, std::uint64_t>, std::unique_ptr<NcclLaunchOrder>>;
  const std::lock_guard lock(mutex);
  auto& order = orders[{device, host}];
  if (!order) order = std::make_unique<NcclLaunchOrder>();
  return *order;
}

}  // namespace cp::emulated
