#include <algorithm>
#include <optional>
#include <utility>

#include "shared/base/error.h"
#include "shared/plan/execute.h"
#include "shared/plan/operations.h"
#include "sim/fabric/fabric.h"
#include "sim/fuzz/mutate/subjects.h"
#include "sim/proof/ledger/attention_ledger.h"
#include "sim/proof/ledger/peak_bound.h"
#include "sim/proof/run/attention_shards.h"
#include "sim/proof/run/attention_test_data.h"
#include "sim/proof/run/attention_tolerance.h"
#include "sim/scenario/attention_request.h"

namespace cp::sim {
namespace {

// What a rank computes, but for where: of each step that is no move its operation, numbers, flags and the
// types of its operands. Plans that are alike in this, and whose outputs the ledger finds to be made of the
// same, differ by the order of sums alone.
std::vector<std::string> arithmetic_of(const Plan& plan) {
  std::vector<std::string> all;
  for (const StepRef& ref : steps_of(plan)) {
    visit_operation(ref.step->work, [&]<class Op>(const Op& op) {
      if constexpr (!std::is_same_v<Op, Exchange> && !std::is_same_v<Op, Copy>) {
        std::string text(kOperationName<Op>);
        visit_fields(op, [&](std::string_view, const auto& field) {
          using Field = std::remove_cvref_t<decltype(field)>;
          const auto dtype = [&](const View& view) {
            text += is_absent(view)
                        ? " -"
                        : str(" ", name(plan.buffers[static_cast<std::size_t>(view.buffer)].dtype));
          };
          if constexpr (std::is_same_v<Field, View>) {
            dtype(field);
          } else if constexpr (std::is_same_v<Field, std::vector<View>>) {
            for (const View& view : field) dtype(view);
          } else if constexpr (std::is_same_v<Field, ReduceOp>) {
            text += str(" ", name(field));
          } else if constexpr (std::is_same_v<Field, double> || std::is_same_v<Field, bool>) {
            text += str(" ", field);
          }
        });
        all.push_back(std::move(text));
      }
    });
  }
  std::sort(all.begin(), all.end());
  return all;
}

class AttentionSubject final : public Subject {
 public:
  AttentionSubject(const AttentionJob& job, std::string label)
      : job_(job),
        label_(std::move(label)),
        request_{job.problem, job.ranks, job.strategies.front(), job.backward, job.options},
        data_(job.problem, job.seed),
        shards_(data_, request_),
        forward_(attention_plans(request_, AttentionPass::forward, job.target)),
        world_size_(*std::max_element(job.ranks.begin(), job.ranks.end()) + 1) {
    if (job.backward) backward_ = attention_plans(request_, AttentionPass::backward, job.target);
    tolerances_ = attention_tolerances(data_, request_, job.backward, job.target);
  }

  std::string strategy(bool backward) const override { return backward ? label_ + " backward" : label_; }
  std::string target() const override { return job_.target.name; }
  const std::vector<Plan>& plans(bool backward) const override { return backward ? backward_ : forward_; }

  MutantJudgement judge(bool backward, const std::vector<Plan>& plans, const TrialOptions& options) override {
    const AttentionPass pass = backward ? AttentionPass::backward : AttentionPass::forward;
    if (const auto complaint = complaint_of([&] { check(plans); })) return {Outcome::check, *complaint};
    std::string difference;
    for (int schedule = 0; schedule < options.schedules; ++schedule) {
      const Run run = this->run(pass, plans, static_cast<std::uint64_t>(schedule));
      if (run.error && asked(options, Outcome::fabric)) return {Outcome::fabric, *run.error};
      if (schedule == 0 && asked(options, Outcome::ledger)) {
        if (const auto finding = audit(pass, plans, run)) return {Outcome::ledger, *finding};
      }
      const std::optional<std::string> wrong = compare(pass, run.buffers);
      if (wrong && asked(options, Outcome::result)) return {Outcome::result, *wrong};
      if (difference.empty()) difference = difference_from_right(pass, run.buffers);
    }
    if (difference.empty()) return {Outcome::equivalent, ""};
    const std::vector<Plan>& right = this->plans(backward);
    const bool proven = asked(options, Outcome::ledger) && asked(options, Outcome::result);
    if (proven && std::equal(plans.begin(), plans.end(), right.begin(), [](const Plan& a, const Plan& b) {
          return arithmetic_of(a) == arithmetic_of(b);
        })) {
      return {Outcome::rearranged, difference};
    }
    return {Outcome::survivor, difference};
  }

 private:
  struct Run {
    std::optional<std::string> error, traces;
    std::int64_t delivered_bytes = 0;
    std::vector<RankBuffers> buffers;  // by plan
  };

  // What the backward pass begins with.
  const std::vector<RankBuffers>& kept() {
    if (kept_.empty()) kept_ = run(AttentionPass::forward, forward_, 0).buffers;
    return kept_;
  }

  // The caller's buffers are those of the right plans.
  Run run(AttentionPass pass, const std::vector<Plan>& plans, std::uint64_t seed) {
    const std::vector<Plan>& right = this->plans(pass == AttentionPass::backward);
    Run result;
    result.buffers = pass == AttentionPass::backward ? kept() : std::vector<RankBuffers>(plans.size());
    std::vector<std::size_t> number_of(static_cast<std::size_t>(world_size_), plans.size());
    for (std::size_t i = 0; i < plans.size(); ++i) number_of[static_cast<std::size_t>(plans[i].self)] = i;
    Fabric fabric(world_size_, fabric_options(seed));
    result.error = complaint_of([&] {
      fabric.run([&](Rank rank, Device& device) {
        const std::size_t i = number_of[static_cast<std::size_t>(rank)];
        if (i == plans.size()) return;
        execute(plans[i], device, shards_.bind(pass, right[i], result.buffers[i]),
                &fabric.traces()[static_cast<std::size_t>(rank)]);
      });
    });
    if (result.error) return result;
    const std::vector<RankTrace>& traces = fabric.traces();
    result.traces = first_difference(traces, traces);
    for (const RankTrace& trace : traces) {
      for (const OpRecord& record : trace.observed) {
        for (const std::int64_t bytes : record.received) result.delivered_bytes += bytes;
      }
    }
    return result;
  }

  std::optional<std::string> audit(AttentionPass pass, const std::vector<Plan>& plans, const Run& run) const {
    if (run.traces) return run.traces;
    for (const Plan& plan : plans) {
      const std::int64_t peak = peak_bytes(plan);
      const std::int64_t bound = peak_bound_bytes(request_, pass, shards_.index_of(plan.self), plan);
      if (peak > bound)
        return str("rank ", plan.self, " needs ", peak, " bytes, where the strategy allows ", bound);
    }
    const AttentionLedger ledger = keep_ledger(request_, pass, plans);
    if (!ledger.cells.empty()) return ledger.cells.summary();
    if (!ledger.bytes.empty()) return ledger.bytes.summary();
    std::int64_t received = 0;
    for (const Received& of_rank : ledger.received) received += of_rank.total();
    if (received == run.delivered_bytes) return std::nullopt;
    return str("the fabric delivered ", run.delivered_bytes, " bytes, where the plans move ", received);
  }

  std::optional<std::string> compare(AttentionPass pass, const std::vector<RankBuffers>& buffers) {
    const std::vector<Plan>& right = plans(pass == AttentionPass::backward);
    for (std::size_t i = 0; i < right.size(); ++i) {
      for (const auto& [tensor, error] : shards_.compare(pass, right[i], buffers[i], tolerances_)) {
        if (!error.holds()) return str(error.tensor, ": ", error.finding);
      }
      // What was moved and kept is equal in every world.
      const auto expected = AttentionShards::digests(request_.problem, right[i], right_buffers(pass)[i]);
      for (const auto& [name, digest] : AttentionShards::digests(request_.problem, right[i], buffers[i])) {
        if (digest != expected.at(name))
          return str("rank ", right[i].self, "'s ", name, " is not what was moved there");
      }
    }
    return std::nullopt;
  }

  const std::vector<RankBuffers>& right_buffers(AttentionPass pass) {
    if (pass == AttentionPass::forward) return kept();
    if (right_backward_.empty()) right_backward_ = run(pass, backward_, 0).buffers;
    return right_backward_;
  }

  // Empty: there is none.
  std::string difference_from_right(AttentionPass pass, const std::vector<RankBuffers>& buffers) {
    const std::vector<Plan>& right = plans(pass == AttentionPass::backward);
    for (std::size_t i = 0; i < right.size(); ++i) {
      for (const Buffer& buffer : right[i].buffers) {
        if (buffer.kind != BufferKind::output && buffer.kind != BufferKind::inout) continue;
        const std::vector<std::byte>&found = buffers[i].at(buffer.name),
              &expected = right_buffers(pass)[i].at(buffer.name);
        const auto [at, where] = std::mismatch(found.begin(), found.end(), expected.begin());
        if (at == found.end()) continue;
        return str("element ", (at - found.begin()) / size_bytes(buffer.dtype), " of rank ", right[i].self,
                   "'s ", buffer.name, " has other bits than with the right plans");
      }
    }
    return "";
  }

  const AttentionJob job_;
  const std::string label_;
  const AttentionRequest request_;
  const AttentionTestData data_;
  const AttentionShards shards_;
  const std::vector<Plan> forward_;
  std::vector<Plan> backward_;
  const int world_size_;
  AttentionTolerances tolerances_;
  std::vector<RankBuffers> kept_, right_backward_;  // of the right plans, by plan
};

}  // namespace

std::unique_ptr<Subject> make_attention_subject(const proto::Attention& job) {
  const AttentionJob made = make_attention_job(job);
  if (made.strategies.size() != 1) {
    throw InvalidInput(str("--strategies ", job.strategies(), " name ", made.strategies.size(),
                           " strategies, but mutants damage the plans of one; use --strategy"));
  }
  return std::make_unique<AttentionSubject>(made, job.strategy().empty() ? "ring" : job.strategy());
}

}  // namespace cp::sim
