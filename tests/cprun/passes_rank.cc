// A rank with passes of its own, run by RankRun as cprun runs those of a scenario: two sums in place over
// ranks 0 to 2, of which the others know without a part in them. Says what is wrong. With OTHER_INPUTS, rank
// 1 has made its second pass of something else. Run by cprun in the tests.
#include <array>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/job_environment.h"
#include "runtime/launcher/exit_code.h"
#include "runtime/rank_run.h"
#include "runtime/rendezvous/client.h"
#include "shared/base/error.h"
#include "shared/plan/builder.h"

namespace {

using cp::Rank;

constexpr Rank kMembers = 3;
constexpr std::size_t kPasses = 2;
constexpr std::int64_t kBytes = 16;

void expect(bool holds, const std::string& what) {
  if (!holds) std::printf("not so: %s\n", what.c_str());
}

class Sums : public cp::RankPasses {
 public:
  explicit Sums(Rank rank) : x_{static_cast<float>(rank + 1), 1, 2, 3} {
    for (std::size_t pass = 0; pass < kPasses; ++pass) {
      cp::PlanBuilder b(rank < kMembers ? rank : 0, cp::host_target());
      const cp::View x = cp::flat_view(b.inout("x", cp::DType::f32, 4), 0, 4);
      const cp::GroupId members = b.group("members", {0, 1, 2});
      b.add(b.stream("main"), cp::AllReduce{members, cp::ReduceOp::sum, x, x});
      const bool differs = pass == 1 && rank == 1 && std::getenv("OTHER_INPUTS") != nullptr;
      cp::Plan plan = std::move(b).build(cp::Hasher().add(pass).add(differs).digest());
      inputs_.push_back(plan.inputs);
      if (rank < kMembers) plans_.push_back(std::move(plan));
    }
  }

  cp::Bindings bind(std::size_t) override { return {{0, x_.data(), kBytes}}; }
  std::map<std::string, cp::Digest> digests(std::size_t) const override {
    return {{"x", cp::Hasher().add_all(x_).digest()}};
  }
  // A warm-up that counted would sum once more.
  bool are_summed() const { return x_ == std::array<float, 4>{18, 9, 18, 27}; }

 private:
  std::array<float, 4> x_;
};

void run(const cp::runtime::JobEnvironment& job,
         const std::shared_ptr<cp::runtime::RendezvousClient>& client) {
  Sums sums(job.rank);
  std::string told;
  cp::runtime::RankRunOptions options;
  options.begin_pass = [&](const cp::RankTrace& trace) {
    expect(trace.rank == job.rank && trace.issued.empty(), "a pass begins with an empty trace");
    told += "begin ";
  };
  options.issued = [&](const cp::RankTrace& trace) {
    expect(trace.issued.size() == 1, "one step is issued, whether warmed up or not");
    told += "issued ";
  };
  options.end_pass = [&](const cp::RankTrace& trace) {
    expect(trace.issued.size() == 1 && trace.observed.size() == 1 && trace.observed.front().sequence == 0,
           "the trace is that of one run");
    expect(trace.observed_times.size() == 1, "and so are its times");
    expect(trace.digests.contains("x"), "it has the digests");
    told += "end ";
  };
  cp::runtime::RankRun rank_run(job, client, options);
  const cp::runtime::RankRunResult result = rank_run.run(sums);
  const bool member = job.rank < kMembers;
  expect(told == (member ? "begin issued end begin issued end " : ""), "the order of the calls: " + told);
  expect(result.seconds.size() == (member ? kPasses : 0), "there is a time for each pass");
  expect(result.steps == result.seconds.size() && result.collectives == result.steps, "a step each");
  if (member) expect(sums.are_summed(), "the sums of the sums");
  client->barrier("all have their results");
}

}  // namespace

int main() {
  std::shared_ptr<cp::runtime::RendezvousClient> client;
  try {
    const std::optional<cp::runtime::JobEnvironment> job = cp::runtime::job_environment();
    if (!job) throw cp::InvalidInput("run by cprun alone: cprun --nproc-per-node 4 -- passes_rank");
    client = cp::runtime::join(*job);
    run(*job, client);
    client->goodbye();
    return 0;
  } catch (const cp::Error& error) {
    if (client && !client->failure()) client->report_failure(error.kind(), error.what());
    std::fprintf(stderr, "%s\n", error.what());
    return cp::runtime::exit_code(error.kind());
  }
}
