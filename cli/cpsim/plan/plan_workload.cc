#include "cli/cpsim/plan/plan_workload.h"

#include <cstdint>
#include <string_view>
#include <utility>

#include "cli/common/flags.h"
#include "shared/base/error.h"
#include "traces/types_proto.h"

namespace cp::cli {
namespace {

using Job = proto::PlanLayouts;

void require_missing(bool given, std::string_view flag, std::string_view phase, std::string_view instead) {
  if (given) throw InvalidInput(str(flag, " does not apply to ", phase, "; leave it out", instead));
}

[[noreturn]] void missing(std::string_view flag, std::string_view example) {
  throw InvalidInput(str(flag, " is missing; add, for example, ", flag, " ", example));
}

class WorkloadReader {
 public:
  WorkloadReader(const Job& job, std::optional<DType> stored, std::vector<std::string>& assumptions)
      : job_(job), stored_(stored), assumptions_(assumptions) {}

  Workload read() {
    take_phase();
    take_dtypes();
    if (workload_.phase == Phase::training) {
      take_training();
    } else {
      take_serving();
    }
    validate_workload(workload_);
    return workload_;
  }

 private:
  void assume(std::string text) { assumptions_.push_back(std::move(text)); }

  void take_phase() {
    switch (job_.phase()) {
      case Job::prefill:
        workload_.phase = Phase::prefill;
        break;
      case Job::decode:
        workload_.phase = Phase::decode;
        break;
      default:
        workload_.phase = Phase::training;
    }
    if (!job_.has_phase()) assume("phase training");
  }

  DType dtype(proto::DType given, const char* field, DType fallback) const {
    return given == 0 ? fallback : from_proto(given, {FieldPath("plan"), field});
  }

  void take_dtypes() {
    const bool half = stored_ == DType::f16 || stored_ == DType::bf16;
    workload_.dtype = dtype(job_.dtype(), "dtype", half ? *stored_ : DType::bf16);
    if (job_.dtype() == 0)
      assume(str("dtype ", name(workload_.dtype), half ? ", as the config stores it" : ""));
    const bool serving = workload_.phase != Phase::training;
    workload_.kv_dtype = dtype(job_.kv_dtype(), "kv_dtype", workload_.dtype);
    if (serving && job_.kv_dtype() == 0 && !job_.fp8_cache())
      assume(str("kv_dtype ", name(workload_.kv_dtype)));
    if (!serving) {
      workload_.gradient_dtype = dtype(job_.gradient_dtype(), "gradient_dtype", DType::f32);
      if (job_.gradient_dtype() == 0) assume("gradient_dtype f32");
    }
    if (job_.has_expert_imbalance()) workload_.expert_imbalance = job_.expert_imbalance();
    if (job_.attention_dropout() > 0 && !serving)
      assume(str("attention_dropout ", job_.attention_dropout(),
                 ": attention is timed as without it, since no kernel with it was measured"));
    workload_.attention_dropout = job_.attention_dropout();
  }

  void take_training() {
    const std::string_view phase = "training";
    require_missing(job_.has_concurrent(), "--concurrent", phase, " and give --global-batch");
    require_missing(job_.has_cached(), "--cached", phase, ", or add --phase prefill");
    require_missing(job_.has_new_tokens(), "--new-tokens", phase, ", or add --phase decode");
    require_missing(job_.has_ttft_max(), "--ttft-max", phase, ", or add --phase decode");
    require_missing(job_.kv_dtype() != 0 || job_.fp8_cache(), "--kv-dtype", phase,
                    ", or add --phase prefill");
    if (job_.seq_len() == 0) missing("--seq-len", "128K");
    workload_.seq_len = job_.seq_len();
    if (!job_.documents().empty()) take_documents();
    workload_.global_batch = global_batch();
    const std::string optimizer = job_.optimizer().empty() ? "adamw" : job_.optimizer();
    if (job_.optimizer().empty()) assume(str("optimizer ", optimizer));
    workload_.optimizer = value_of("--optimizer", optimizer, [&] { return parse_optimizer(optimizer); });
  }

  void take_documents() {
    workload_.cu_seqlens = value_of("--documents", job_.documents(),
                                    [&] { return parse_ints(job_.documents(), '/', "document's end"); });
  }

  std::int64_t global_batch() const {
    if (!job_.has_global_batch_tokens()) {
      if (!job_.has_global_batch()) missing("--global-batch", "16, in sequences");
      return job_.global_batch();
    }
    const std::int64_t tokens = job_.global_batch_tokens(), seq_len = job_.seq_len();
    if (job_.has_global_batch() && job_.global_batch() != tokens / seq_len) {
      throw InvalidInput(str("--global-batch ", job_.global_batch(), " and --global-batch-tokens ", tokens,
                             " disagree; give one of them"));
    }
    if (tokens % seq_len == 0) return tokens / seq_len;
    const std::int64_t below = tokens / seq_len;
    throw InvalidInput(str("--global-batch-tokens ", tokens, " tokens are no whole number of sequences of ",
                           seq_len, " tokens; use ", below > 0 ? str(below * seq_len, " or ") : "",
                           (below + 1) * seq_len));
  }

  void take_serving() {
    const std::string_view phase = name(workload_.phase);
    require_missing(job_.has_global_batch(), "--global-batch", phase, " and give --concurrent");
    require_missing(job_.has_global_batch_tokens(), "--global-batch-tokens", phase, " and give --concurrent");
    require_missing(job_.has_micro_batch(), "--micro-batch", phase,
                    ": all requests of a replica run at once");
    require_missing(!job_.optimizer().empty(), "--optimizer", phase, "");
    require_missing(!job_.recompute().empty(), "--recompute", phase, "");
    require_missing(!job_.documents().empty(), "--documents", phase,
                    ": each request is one sequence, and they are packed in training");
    require_missing(job_.mtp_layers() > 0, "--mtp-layers", phase,
                    ": layers that predict further tokens are of training");
    require_missing(job_.gradient_dtype() != 0, "--gradient-dtype", phase, "");
    require_missing(job_.attention_dropout() != 0, "--attention-dropout", phase, "");
    workload_.global_batch = job_.has_concurrent() ? job_.concurrent() : 1;
    if (!job_.has_concurrent()) assume("concurrent 1");
    workload_.cached = job_.cached();
    if (workload_.phase == Phase::prefill) {
      require_missing(job_.has_new_tokens(), "--new-tokens", phase, ", or use --phase decode");
      require_missing(job_.has_ttft_max(), "--ttft-max", phase,
                      ", or use --phase decode: the answer of prefill is ranked by this time");
      if (job_.seq_len() == 0) missing("--seq-len", "128K");
      workload_.seq_len = job_.seq_len();
      if (!job_.has_cached()) assume("cached 0");
    } else {
      take_decode();
    }
  }

  void take_decode() {
    // Chosen: a short answer. The answer's assumptions state it.
    constexpr std::int64_t kNewTokens = 128;
    workload_.new_tokens = kNewTokens;
    if (job_.has_new_tokens()) {
      workload_.new_tokens = job_.new_tokens();
    } else if (job_.has_cached() && job_.seq_len() > job_.cached()) {
      workload_.new_tokens = job_.seq_len() - job_.cached();
    } else {
      assume(str("new_tokens ", kNewTokens));
    }
    if (job_.has_cached()) {
      workload_.seq_len = job_.seq_len() > 0 ? job_.seq_len() : workload_.cached + workload_.new_tokens;
    } else {
      if (job_.seq_len() == 0) missing("--cached", "128K");
      workload_.seq_len = job_.seq_len();
      workload_.cached = job_.seq_len() - workload_.new_tokens;
      assume(str("cached ", workload_.cached, ", seq_len less new_tokens"));
    }
  }

  const Job& job_;
  const std::optional<DType> stored_;
  std::vector<std::string>& assumptions_;
  Workload workload_;
};

}  // namespace

Workload read_workload(const Job& job, std::optional<DType> stored, std::vector<std::string>& assumptions) {
  return WorkloadReader(job, stored, assumptions).read();
}

}  // namespace cp::cli
