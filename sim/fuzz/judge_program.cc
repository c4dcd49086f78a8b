// Programs: check() refuses them exactly when the oracle does (sim/proof/exhaustive/program_oracle.h), and
// legal ones give what the oracle computes, whatever the order of ranks and streams.
#include <cmath>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "shared/base/index.h"
#include "shared/kernels/elements.h"
#include "shared/plan/check.h"
#include "shared/plan/execute.h"
#include "shared/plan/step_rules.h"
#include "sim/fabric/fabric.h"
#include "sim/fuzz/conditions.h"
#include "sim/fuzz/draw_program.h"
#include "sim/fuzz/fields_law.h"
#include "sim/fuzz/judge.h"
#include "sim/fuzz/program_flaws.h"
#include "sim/proof/exhaustive/program_oracle.h"

namespace cp::sim {
namespace {

using Bytes = std::vector<std::byte>;

template <class E, class F>
std::optional<std::string> refusal_of(const F& f) {
  try {
    f();
    return std::nullopt;
  } catch (const E& error) {
    return error.what();
  }
}

// ---- data ----

ProgramValues start_values(const std::vector<Plan>& plans, std::uint64_t seed) {
  ProgramValues values(plans.size());
  for (std::size_t p = 0; p < plans.size(); ++p) {
    for (std::size_t b = 0; b < plans[p].buffers.size(); ++b) {
      const Buffer& buffer = plans[p].buffers[b];
      Numbers numbers(Numbers::combine(Numbers::combine(seed, 0x64617461 + p), b));
      std::vector<std::int64_t>& all = values[p].emplace_back(idx(buffer.numel), 0);
      if (buffer.kind != BufferKind::input && buffer.kind != BufferKind::inout) continue;
      for (std::int64_t& value : all) value = numbers.in(-9, 9);
    }
  }
  return values;
}

Bytes to_bytes(DType dtype, const std::vector<std::int64_t>& values) {
  Bytes bytes(values.size() * idx(size_bytes(dtype)));
  with_element_type(dtype, [&]<class T>(std::type_identity<T>) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      const T element = convert<T>(values[i]);
      std::memcpy(bytes.data() + i * sizeof element, &element, sizeof element);
    }
  });
  return bytes;
}

// The first element that is another number; what is none counts as another.
std::optional<std::size_t> first_other(DType dtype, const Bytes& bytes,
                                       const std::vector<std::int64_t>& values, std::string& got) {
  std::optional<std::size_t> found;
  with_element_type(dtype, [&]<class T>(std::type_identity<T>) {
    for (std::size_t i = 0; i < values.size() && !found; ++i) {
      T element{};
      std::memcpy(&element, bytes.data() + i * sizeof element, sizeof element);
      const auto value = load(element);
      if (value == static_cast<ValueOf<T>>(values[i])) continue;
      found = i;
      got = str(value);
    }
  });
  return found;
}

// What an engineer would see who runs such plans unchecked: the fabric names what differs. The counts that an
// Exchange declares are check()'s business alone.
bool is_seen_by_the_fabric(const proto::Program& job) {
  switch (job.flaw()) {
    case proto::Program::drop_step:
    case proto::Program::swap_steps:
    case proto::Program::other_reduction:
    case proto::Program::other_root:
    case proto::Program::other_dtype:
      return true;
    default:
      return false;
  }
}

class ProgramRun {
 public:
  ProgramRun(const std::vector<Plan>& plans, const proto::Program& job, Trial& trial)
      : plans_(plans), trial_(trial), start_(start_values(plans, job.seed())), memory_(plans.size()) {}

  void run() {
    const ProgramResult expected = interpret(plans_, start_);
    if (!expected.exact) return;
    trial_.property("run", [&] { run_fabric(); });
    trial_.ran();
    for (std::size_t p = 0; p < plans_.size(); ++p) compare(p, expected.values[p]);
  }

  // Of plans whose ranks do not agree: the fabric says so.
  void must_fail(const std::string& why) {
    const auto refusal = trial_.property("fabric", [&] { return refusal_of<Error>([&] { run_fabric(); }); });
    trial_.require(refusal.has_value(), "fabric", "the fabric runs to the end, and ", why);
  }

 private:
  void run_fabric() {
    const RunOrder order = run_order(trial_.fuzz_case().order(), plans_);
    FabricOptions options;
    options.schedule = order.schedule;
    options.seed = order.seed;
    options.order = order.order;
    options.record_traces = false;
    Fabric fabric(static_cast<int>(plans_.size()), options);
    fabric.run([&](Rank rank, Device& device) { run_rank(idx(rank), device); });
  }

  void run_rank(std::size_t p, Device& device) {
    Bindings bindings;
    for (std::size_t b = 0; b < plans_[p].buffers.size(); ++b) {
      const Buffer& buffer = plans_[p].buffers[b];
      memory_[p].emplace_back();
      if (buffer.kind == BufferKind::temporary) continue;
      memory_[p].back() = to_bytes(buffer.dtype, start_[p][b]);
      bindings.push_back({static_cast<BufferId>(b), memory_[p].back().data(), buffer.bytes()});
    }
    execute(plans_[p], device, bindings);
  }

  void compare(std::size_t p, const std::vector<std::vector<std::int64_t>>& expected) {
    for (std::size_t b = 0; b < plans_[p].buffers.size(); ++b) {
      const Buffer& buffer = plans_[p].buffers[b];
      if (buffer.kind == BufferKind::temporary) continue;
      std::string got;
      if (const auto other = first_other(buffer.dtype, memory_[p][b], expected[b], got)) {
        throw trial_.failure("data",
                             str("rank ", plans_[p].self, " has ", got, " at ", buffer.name, "[", *other,
                                 "] where the steps in issue order give ", expected[b][*other]));
      }
      for (const std::int64_t value : expected[b]) trial_.hasher().add(value);
    }
  }

  const std::vector<Plan>& plans_;
  Trial& trial_;
  const ProgramValues start_;
  std::vector<std::vector<Bytes>> memory_;  // by rank and buffer
};

}  // namespace

void judge_program(const proto::Program& job, Trial& trial) {
  const DrawnProgram drawn = make_program(job);
  std::vector<Plan> plans = trial.property("builder", [&] { return build_program(job, drawn.drafts); });
  for (std::size_t p = 0; p < plans.size(); ++p) {
    for (const Step& step : drawn.misfits[p]) {
      trial.require(refusal_of<InvalidInput>([&] { validate_step(plans[p], step, 1); }).has_value(),
                    "single steps", "a ", operation_name(step.work), " of rank ", p,
                    " passes that writes memory that it uses otherwise");
    }
  }
  if (job.flaw() == proto::Program::none) {
    const auto why = refuse_program(plans);
    trial.require(!why, "builder", "a program that is legal by construction is not: ", why.value_or(""));
  }
  plant_flaw(job, plans);
  for (const Plan& plan : plans) trial.hasher().add(digest(plan));
  const std::optional<std::string> why = refuse_program(plans);
  const std::optional<std::string> refusal =
      trial.property("plan check", [&] { return refusal_of<Error>([&] { check(plans); }); });
  trial.require(!why || refusal, "plan check", "check() passes, and ", why.value_or(""));
  trial.require(why || !refusal, "plan check", "check() refuses a legal program: ", refusal.value_or(""));
  trial.hasher().add(why.has_value() ? 1 : 0);
  if (!why) {
    ProgramRun(plans, job, trial).run();
  } else if (is_seen_by_the_fabric(job) && !refuse_alone(plans)) {
    if (const auto meetings = refuse_meetings(plans)) ProgramRun(plans, job, trial).must_fail(*meetings);
  }
  const Plan& any = plans[job.seed() % plans.size()];
  if (trial.asks("texts")) {
    if (!why)
      check_texts(any, trial);  // what is read from bytes is refused where it breaks the rules of memory
    check_texts(draw_steps(job.seed()), trial);
  }
  if (trial.asks("fields")) {
    check_fields(any, job.seed(), trial);
    check_fields(draw_steps(job.seed()), job.seed() + 1, trial);
  }
}

}  // namespace cp::sim
