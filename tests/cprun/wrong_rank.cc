// A program of which one rank does something else than the others, once: run by cprun in the tests. Nobody
// compares its plans before they run, as where all ranks have used all of them before.
//
//   KIND   none, reduction, root, dtype, count, plan (the same collective in a plan that was made from other
//          inputs), skip, repeat, swap (with the operation after it)
//   AT     which of the operations, from 0
//   WHO    the rank that differs
//   STEPS  how often all operations run [1]; the rank differs in the last round
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <string>
#include <vector>

#include "runtime/job.h"
#include "runtime/launcher/exit_code.h"
#include "shared/base/error.h"
#include "shared/base/text.h"
#include "shared/plan/builder.h"
#include "shared/plan/execute.h"

namespace cp::testing {
namespace {

enum class Kind { all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, exchange };

struct Operation {
  Kind kind = Kind::all_reduce;
  ReduceOp reduction = ReduceOp::sum;
  std::int32_t root = 0;
  DType dtype = DType::f32;
  std::int64_t count = 24;  // elements of a block
  bool other_inputs = false;
};

std::string variable(const char* name, const char* otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : value;
}

Plan make_plan(const Operation& operation, Rank self, std::int32_t world) {
  std::vector<Rank> all(static_cast<std::size_t>(world));
  std::iota(all.begin(), all.end(), 0);
  PlanBuilder b(self, host_target());
  const std::int64_t one = operation.count, whole = one * world;
  const BufferId in = b.input("in", operation.dtype, whole), out = b.output("out", operation.dtype, whole);
  const GroupId group = b.group("cp", all);
  const auto collective = [&]() -> Collective {
    switch (operation.kind) {
      case Kind::all_reduce:
        return AllReduce{group, operation.reduction, flat_view(in, 0, whole), flat_view(out, 0, whole)};
      case Kind::all_gather:
        return AllGather{group, flat_view(in, 0, one), flat_view(out, 0, whole)};
      case Kind::reduce_scatter:
        return ReduceScatter{group, operation.reduction, flat_view(in, 0, whole), flat_view(out, 0, one)};
      case Kind::all_to_all:
        return AllToAll{group, flat_view(in, 0, whole), flat_view(out, 0, whole)};
      case Kind::broadcast:
        return Broadcast{group, operation.root, flat_view(in, 0, whole), flat_view(out, 0, whole)};
      case Kind::exchange: {
        std::vector<Count> counts;
        for (std::int32_t rank = 0; rank < world; ++rank) counts.push_back({rank, (rank + 1) % world, one});
        return Exchange{group,
                        {{(self + 1) % world, flat_view(in, 0, one)}},
                        {{(self + world - 1) % world, flat_view(out, 0, one)}},
                        counts_digest(std::move(counts))};
      }
    }
    std::abort();
  };
  b.add(b.stream("main"), collective());
  return std::move(b).build(Hasher().add(operation.other_inputs ? "others" : "the same").digest());
}

// What the rank that differs does in place of the operations.
std::vector<Operation> differing(std::vector<Operation> operations, const std::string& kind, std::size_t at) {
  Operation& one = operations.at(at);
  const auto place = operations.begin() + static_cast<std::ptrdiff_t>(at);
  if (kind == "reduction") {
    one.reduction = ReduceOp::max;
  } else if (kind == "root") {
    one.root = 1;
  } else if (kind == "dtype") {
    one.dtype = DType::bf16, one.count *= 2;  // as many bytes
  } else if (kind == "count") {
    one.count /= 2;
  } else if (kind == "plan") {
    one.other_inputs = true;
  } else if (kind == "skip") {
    operations.erase(place);
  } else if (kind == "repeat") {
    operations.insert(place, Operation(one));
  } else if (kind == "swap") {
    std::swap(one, operations.at(at + 1));
  } else if (kind != "none") {
    throw InvalidInput(str("KIND=", kind, " is unknown"));
  }
  return operations;
}

int run() {
  runtime::Job job;
  std::vector<Operation> operations;
  for (const Kind kind : {Kind::all_reduce, Kind::all_gather, Kind::reduce_scatter, Kind::all_to_all,
                          Kind::broadcast, Kind::exchange})
    operations.push_back({.kind = kind});
  const std::int64_t steps = parse_int(variable("STEPS", "1"), "STEPS");
  const bool differs = job.rank() == parse_int(variable("WHO", "-1"), "WHO");
  std::vector<std::byte> in(1 << 16), out(1 << 16);
  for (std::int64_t step = 0; step < steps; ++step) {
    std::vector<Operation> round = operations;
    if (differs && step + 1 == steps) {
      round = differing(std::move(round), variable("KIND", "none"),
                        static_cast<std::size_t>(parse_int(variable("AT", "0"), "AT")));
    }
    for (const Operation& operation : round) {
      const Plan plan = make_plan(operation, job.rank(), job.world_size());
      execute(plan, job.device(),
              {{0, in.data(), plan.buffers[0].bytes()}, {1, out.data(), plan.buffers[1].bytes()}});
    }
  }
  job.finish();
  if (job.rank() == 0) std::puts("all is well");
  return 0;
}

}  // namespace
}  // namespace cp::testing

int main() {
  try {
    return cp::testing::run();
  } catch (const cp::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return cp::runtime::exit_code(error.kind());
  }
}
