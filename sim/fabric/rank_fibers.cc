#include "sim/fabric/rank_fibers.h"

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <sys/mman.h>
#include <unistd.h>
#include <utility>

#include <cxxabi.h>
#include <ucontext.h>

#include "shared/base/error.h"

namespace cp::sim {
namespace {

// Memory for a stack, with a page below it that nobody may touch.
class Stack {
 public:
  explicit Stack(std::size_t bytes) : bytes_(bytes) {
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    void* const mapped = mmap(nullptr, bytes_ + page, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
    if (mapped == MAP_FAILED) return;
    mprotect(mapped, page, PROT_NONE);
    mapped_ = static_cast<std::byte*>(mapped), guard_ = page;
  }
  Stack(Stack&& other) noexcept
      : mapped_(std::exchange(other.mapped_, nullptr)), bytes_(other.bytes_), guard_(other.guard_) {}
  Stack& operator=(Stack&& other) noexcept {
    std::swap(mapped_, other.mapped_), std::swap(bytes_, other.bytes_), std::swap(guard_, other.guard_);
    return *this;
  }
  ~Stack() {
    if (mapped_ != nullptr) munmap(mapped_, bytes_ + guard_);
  }

  bool exists() const { return mapped_ != nullptr; }
  std::byte* begin() const { return mapped_ + guard_; }
  std::size_t bytes() const { return bytes_; }

 private:
  std::byte* mapped_ = nullptr;
  std::size_t bytes_, guard_ = 0;
};

// Stacks that fabrics of this thread have given back: to map one and to touch it anew takes longer than most
// runs.
constexpr std::size_t kMostIdleStacks = 64;
thread_local std::vector<Stack> idle_stacks;

Stack take_stack(std::size_t bytes) {
  if (idle_stacks.empty() || idle_stacks.back().bytes() != bytes) return Stack(bytes);
  Stack stack = std::move(idle_stacks.back());
  idle_stacks.pop_back();
  return stack;
}

void give_back(Stack stack) {
  if (stack.exists() && idle_stacks.size() < kMostIdleStacks) idle_stacks.push_back(std::move(stack));
}

// What the C++ runtime keeps for a thread of the exceptions that are being handled (Itanium C++ ABI, 2.2.2):
// each rank has its own.
struct HandledExceptions {
  void* caught = nullptr;
  unsigned uncaught = 0;
};

void change_handled(HandledExceptions& from, const HandledExceptions& to) {
  auto* const current = reinterpret_cast<HandledExceptions*>(abi::__cxa_get_globals());
  from = *current;
  *current = to;
}

}  // namespace

struct RankFibers::Fiber {
  Stack stack{0};
  ucontext_t context{};
  HandledExceptions handled;
};

RankFibers::RankFibers(int count, std::size_t stack_bytes)
    : fibers_(static_cast<std::size_t>(count)), host_(std::make_unique<Fiber>()) {
  int made = 0;
  for (Fiber& fiber : fibers_) {
    fiber.stack = take_stack(stack_bytes);
    if (!fiber.stack.exists()) {
      throw InvalidInput(str("a fabric of ", count, " ranks: only ", made, " stacks of ", stack_bytes,
                             " bytes could be mapped: ", std::strerror(errno),
                             "; raise the limit on memory (ulimit -v), or use fewer ranks"));
    }
    ++made;
  }
}

RankFibers::~RankFibers() {
  for (Fiber& fiber : fibers_) give_back(std::move(fiber.stack));
}

void RankFibers::go_on(Fiber& from, Fiber& to) {
  change_handled(from.handled, to.handled);
  swapcontext(&from.context, &to.context);
}

void RankFibers::await(Rank self) {
  const Rank next = std::exchange(next_, -1);
  if (next >= 0 && next != self)
    go_on(fibers_[static_cast<std::size_t>(self)], fibers_[static_cast<std::size_t>(next)]);
}

// makecontext() passes whole numbers alone: the address in two halves.
void RankFibers::fiber_main(unsigned high, unsigned low, Rank self) {
  auto& fibers = *reinterpret_cast<RankFibers*>((std::uintptr_t{high} << 32) | low);
  (*fibers.body_)(self);
  --fibers.left_;
  const Rank next = std::exchange(fibers.next_, -1);
  fibers.go_on(fibers.fibers_[static_cast<std::size_t>(self)],
               next < 0 ? *fibers.host_ : fibers.fibers_[static_cast<std::size_t>(next)]);
}

void RankFibers::run(const std::function<void(Rank)>& body) {
  body_ = &body;
  const auto address = reinterpret_cast<std::uintptr_t>(this);
  for (std::size_t rank = 0; rank < fibers_.size(); ++rank) {
    Fiber& fiber = fibers_[rank];
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.begin();
    fiber.context.uc_stack.ss_size = fiber.stack.bytes();
    fiber.context.uc_link = nullptr;
    fiber.handled = {};
    makecontext(&fiber.context, reinterpret_cast<void (*)()>(&RankFibers::fiber_main), 3,
                static_cast<unsigned>(address >> 32), static_cast<unsigned>(address),
                static_cast<Rank>(rank));
  }
  left_ = static_cast<int>(fibers_.size());
  const Rank first = std::exchange(next_, -1);
  CP_INVARIANT(first >= 0, "nobody was given the baton");
  go_on(*host_, fibers_[static_cast<std::size_t>(first)]);
  CP_INVARIANT(left_ == 0, left_, " ranks were left behind");
  body_ = nullptr;
}

}  // namespace cp::sim
