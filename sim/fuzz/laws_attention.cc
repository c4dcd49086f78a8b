#include <algorithm>
#include <cmath>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "shared/base/index.h"
#include "shared/context_parallel/sharding.h"
#include "shared/plan/check.h"
#include "shared/plan/plan_text.h"
#include "sim/base/numbers.h"
#include "sim/fuzz/laws.h"
#include "sim/fuzz/mutants_law.h"
#include "sim/fuzz/mutate/plan_mutations.h"
#include "sim/fuzz/timeline_law.h"
#include "sim/proof/exhaustive/index_oracle.h"
#include "sim/proof/ledger/attention_ledger.h"
#include "traces/plan_proto.h"

namespace cp::sim {
namespace {

using Values = std::vector<double>;

// Whose rows of which tensor: [batch, heads, rows, dim], row-major.
struct Dims {
  std::int64_t batch, heads, rows, dim;
};

// What goes in or comes out, by name, in the order of AttentionResults.
struct NamedValues {
  const char* name;
  Values AttentionResults::*values;
};
constexpr NamedValues kResults[] = {{"out", &AttentionResults::out}, {"lse", &AttentionResults::lse},
                                    {"dq", &AttentionResults::dq},   {"dk", &AttentionResults::dk},
                                    {"dv", &AttentionResults::dv},   {"dlatent", &AttentionResults::dlatent}};

bool is_of_queries(std::string_view name) { return name == "out" || name == "lse" || name == "dq"; }

Dims dims_of(const AttentionProblem& problem, std::string_view name) {
  if (name == "dlatent") return {problem.batch, 1, problem.kv_len, problem.latent.dim()};
  const bool queries = is_of_queries(name);
  return {problem.batch, queries ? problem.q_heads : problem.kv_heads,
          queries ? problem.q_len : problem.kv_len,
          name == "lse"                  ? 1
          : name == "dq" || name == "dk" ? problem.head_dim
                                         : problem.v_head_dim};
}

// The tensor with its batch entries in reverse order.
Values reversed_entries(const Values& values, std::int64_t batch) {
  Values result;
  const auto entry = static_cast<std::ptrdiff_t>(values.size() / idx(batch));
  for (std::int64_t b = batch; b-- > 0;) {
    const auto begin = values.begin() + entry * static_cast<std::ptrdiff_t>(b);
    result.insert(result.end(), begin, begin + entry);
  }
  return result;
}

// The tensor with `more` rows before its own in each head: those of `filler`, which repeats.
Values with_rows_before(const Values& values, Dims dims, std::int64_t more, const Values& filler) {
  Values result;
  std::size_t next = 0;
  const auto block = static_cast<std::ptrdiff_t>(dims.rows * dims.dim);
  for (std::int64_t head = 0; head < dims.batch * dims.heads; ++head) {
    for (std::int64_t i = 0; i < more * dims.dim; ++i) result.push_back(filler[next++ % filler.size()]);
    const auto begin = values.begin() + block * static_cast<std::ptrdiff_t>(head);
    result.insert(result.end(), begin, begin + block);
  }
  return result;
}
// The same without the first `fewer` rows of each head.
Values without_rows_before(const Values& values, Dims dims, std::int64_t fewer) {
  Values result;
  const auto block = static_cast<std::ptrdiff_t>(dims.rows * dims.dim),
             skipped = static_cast<std::ptrdiff_t>(fewer * dims.dim);
  for (std::int64_t head = 0; head < dims.batch * dims.heads; ++head) {
    const auto begin = values.begin() + block * static_cast<std::ptrdiff_t>(head);
    result.insert(result.end(), begin + skipped, begin + block);
  }
  return result;
}

class Laws {
 public:
  Laws(const AttentionRequest& request, const AttentionTestData& data, const RanAttention& ran,
       const Trial& trial)
      : request_(request), problem_(request.problem), data_(data), ran_(ran), trial_(trial) {}

  void check_all() {
    if (trial_.asks("texts")) texts();
    if (trial_.asks("again")) again();
    if (trial_.asks("home_rows")) home_rows();
    if (trial_.asks("digests")) digests();
    if (trial_.asks("mutants")) mutants();
    if (trial_.asks("ledger")) ledger();
    if (trial_.asks("scaled")) scaled();
    if (trial_.asks("swapped")) swapped();
    if (trial_.asks("shifted")) shifted();
    if (trial_.asks("other_strategy")) other_strategy();
    if (trial_.asks("timeline")) {
      check_timeline(ran_.forward, "dgx-h100", trial_);
      if (!ran_.backward.empty()) check_timeline(ran_.backward, "dgx-h100", trial_);
    }
  }

 private:
  void texts() {
    for (const std::vector<Plan>* plans : {&ran_.forward, &ran_.backward}) {
      if (plans->empty()) continue;
      const Plan& plan = (*plans)[data_.seed() % plans->size()];
      trial_.property("texts", [&] {
        trial_.require(parse_plan(to_text(plan)) == plan, "texts", "the plan of rank ", plan.self,
                       " does not come back from its text");
        trial_.require(parse_plan_bytes(serialize_plan(plan)) == plan, "texts", "the plan of rank ",
                       plan.self, " does not come back from its bytes");
      });
    }
    AttentionProblem read = problem_;
    read.cu_seqlens.clear(), read.cu_seqlens_of_entry.clear();
    trial_.property("texts", [&] { parse_documents(documents_text(problem_), read); });
    trial_.require(read == problem_, "texts", "documents ", documents_text(problem_), " read as ",
                   documents_text(read));
    trial_.require(parse_balance(to_string(request_.strategy.balance)) == request_.strategy.balance, "texts",
                   "balance ", to_string(request_.strategy.balance), " reads as another one");
  }

  void again() {
    trial_.require(attention_plans(request_, AttentionPass::forward, ran_.options.target) == ran_.forward,
                   "again", "equal requests have two forward plans");
    // One by one, they are those of all together.
    const Rank one = request_.ranks[data_.seed() % request_.ranks.size()];
    const auto same = std::find_if(ran_.forward.begin(), ran_.forward.end(),
                                   [&](const Plan& plan) { return plan.self == one; });
    trial_.require(attention_plan(request_, AttentionPass::forward, one, ran_.options.target) == *same,
                   "again", "the plan of rank ", one, " alone is another one than among all");
    const AttentionRun second = run(data_, request_);
    const auto difference = first_difference(second.traces, ran_.run.traces);
    trial_.require(!difference, "again",
                   "the second time it leaves another trace: ", difference.value_or(""));
    for (std::size_t i = 0; i < second.traces.size(); ++i) {
      trial_.require(second.traces[i].digests == ran_.run.traces[i].digests, "again", "rank ",
                     second.traces[i].rank, " has other results the second time, of what is only moved");
    }
  }

  // Other problems have another digest: ranks that disagree about one are found by it.
  void digests() {
    const auto inputs_of = [&](const AttentionRequest& request) {
      return attention_plan(request, AttentionPass::forward, request.ranks.front(), ran_.options.target)
          .inputs;
    };
    const Digest ours = inputs_of(request_);
    const auto require_other = [&](const char* what, const auto& change) {
      AttentionRequest other = request_;
      change(other);
      trial_.require(!(inputs_of(other) == ours), "digests", "a problem with another ", what,
                     " has the same digest");
    };
    require_other("causal", [](AttentionRequest& other) { other.problem.causal = !other.problem.causal; });
    require_other("window", [](AttentionRequest& other) {
      other.problem.window = other.problem.window.value_or(1) + 1;
    });
    require_other("chunk",
                  [](AttentionRequest& other) { other.problem.chunk = other.problem.chunk.value_or(1) + 1; });
    require_other("softcap", [](AttentionRequest& other) { other.problem.softcap += 1; });
    require_other("answer to sinks",
                  [](AttentionRequest& other) { other.problem.sinks = !other.problem.sinks; });
    require_other("latent rank", [](AttentionRequest& other) {
      other.problem.latent.rank += 1;
      other.options.gradients = {};  // of latent rows not every choice is legal
    });
    require_other("dropout", [](AttentionRequest& other) {
      const Dropout before = other.problem.dropout;
      other.problem.dropout = Dropout{before.probability == 0.25 ? 0.5 : 0.25, before.layer};
    });
    require_other("softmax_scale",
                  [](AttentionRequest& other) { other.problem.softmax_scale = other.problem.scale() + 1; });
    require_other("query_offset",
                  [](AttentionRequest& other) { other.problem.query_offset = other.problem.offset() + 1; });
    require_other("batch", [](AttentionRequest& other) {
      other.problem.batch += 1;
      auto& entries = other.problem.cu_seqlens_of_entry;
      if (!entries.empty()) entries.push_back(entries.back());
    });
    require_other("balance", [](AttentionRequest& other) {
      other.strategy.balance = other.strategy.balance.kind == Balance::Kind::striped
                                   ? Balance{}
                                   : Balance{.kind = Balance::Kind::striped, .block = 7};
    });
    if (problem_.shares_mask() && problem_.kv_len > 1) {
      require_other("list of documents", [](AttentionRequest& other) {
        auto& ends = other.problem.cu_seqlens;
        ends = ends == std::vector<std::int64_t>{0, 1} ? std::vector<std::int64_t>{0, 2}
                                                       : std::vector<std::int64_t>{0, 1};
      });
    }
  }

  // Of plans that are damaged. Results of one order are those of every order, bit for bit.
  void mutants() {
    // What fused kernels round, and sums whose order a mutation may change, are no errors: only what cannot
    // change is compared.
    const auto run_in = [&](const std::vector<Plan>& plans, const BatonOrder& order) {
      AttentionRunOptions options = ran_.options;
      options.backward = false;
      options.schedule = Schedule::baton;
      options.order = order;
      const AttentionRun it = run_attention(data_, request_, plans, {}, options);
      Hasher hasher;
      for (const Values* values : {&it.results.out, &it.results.lse})
        hasher.add(std::as_bytes(std::span(*values)));
      return to_string(hasher.digest());
    };
    check_mutants(ran_.forward, data_.seed(), run_in, run_in(ran_.forward, {}), trial_);
  }

  // By the words of MaskSlice (plan.h).
  static bool has_cells(const MaskSlice& slice) {
    for (std::int64_t row = 0; row < slice.q_len; ++row) {
      for (std::int64_t key = 0; key < slice.k_len; ++key) {
        const std::int64_t behind = row + slice.diagonal - key;
        const bool is_full = slice.kind == MaskSlice::Kind::full;
        const bool is_window = slice.kind == MaskSlice::Kind::window;
        if (is_full || (behind >= 0 && (!is_window || behind < slice.window))) return true;
      }
    }
    return false;
  }

  // The slice that `damaged` has once more, or no more.
  static std::optional<MaskSlice> changed_slice(const Plan& right, const Plan& damaged) {
    const std::vector<StepRef> steps = steps_of(right), others = steps_of(damaged);
    for (std::size_t i = 0; i < steps.size(); ++i) {
      const auto* kernel = std::get_if<Kernel>(&steps[i].step->work);
      const auto* other = std::get_if<Kernel>(&others[i].step->work);
      if (kernel == nullptr || !std::holds_alternative<AttentionForward>(*kernel)) continue;
      const auto& all = std::get<AttentionForward>(*kernel).slices;
      const auto& changed = std::get<AttentionForward>(*other).slices;
      if (changed.size() > all.size()) return changed.back();
      if (changed.size() == all.size()) continue;
      std::size_t at = 0;
      while (at < changed.size() && changed[at] == all[at]) ++at;
      return all[at];
    }
    return std::nullopt;
  }

  static std::int64_t attention_steps(const std::vector<Plan>& plans) {
    std::int64_t count = 0;
    for (const Plan& plan : plans) {
      for (const StepRef& ref : steps_of(plan)) {
        const auto* kernel = std::get_if<Kernel>(&ref.step->work);
        const auto* forward = kernel == nullptr ? nullptr : std::get_if<AttentionForward>(kernel);
        if (forward != nullptr && std::ranges::any_of(forward->slices, has_cells)) ++count;
      }
    }
    return count;
  }

  // A slice that is computed twice, a step that is taken twice, and a slice that nobody computes are found by
  // the ledger alone: without any result, which a step that writes the same again leaves as it was.
  void ledger() {
    // Chosen: most steps that may be repeated are other ones than attention's.
    constexpr int kTries = 12;
    Numbers numbers(Numbers::combine(data_.seed(), 0x6c6564));
    const std::int64_t steps = attention_steps(ran_.forward);
    for (int i = 0; i < kTries; ++i) {
      const MutationKind kind = i == 0   ? MutationKind::repeat_slice
                                : i == 1 ? MutationKind::drop_slice
                                         : MutationKind::repeat_step;
      std::vector<Plan> damaged = ran_.forward;
      const auto mutation =
          mutate(damaged, kind, static_cast<std::int64_t>(numbers.next() >> 8), numbers.next());
      if (!mutation) continue;
      if (kind == MutationKind::repeat_step) {
        if (attention_steps(damaged) == steps) continue;
      } else {
        std::optional<MaskSlice> slice;
        for (std::size_t rank = 0; rank < damaged.size() && !slice; ++rank)
          slice = changed_slice(ran_.forward[rank], damaged[rank]);
        if (!slice || !has_cells(*slice)) continue;
      }
      try {
        check(damaged);
      } catch (const Error&) {
        continue;  // no fused kernel takes such a mask; a step that adds to what it wrote is out of order
      }
      trial_.require(!keep_ledger(request_, AttentionPass::forward, damaged).cells.empty(), "ledger",
                     mutation->text, ", and the ledger finds nothing");
    }
  }

  // Which rows a rank has, by what the balances are said to mean: the ring axis first, then the Ulysses axis
  // evenly.
  void home_rows() {
    const Balance& balance = request_.strategy.balance;
    if (balance.kind == Balance::Kind::cost || balance.per_document) return;
    const Split split = balance.kind == Balance::Kind::head_tail ? Split(HeadTail{})
                        : balance.kind == Balance::Kind::striped ? Split(Striped{balance.block})
                                                                 : Split(Balanced{});
    const int cp = static_cast<int>(request_.ranks.size()), degree = request_.strategy.ulysses_degree;
    const AttentionSharding sharding(problem_, cp, request_.strategy);
    for (int index = 0; index < cp; ++index) {
      const int ring = request_.strategy.ulysses_inner ? index / degree : index % (cp / degree);
      const int ulysses = request_.strategy.ulysses_inner ? index % degree : index / (cp / degree);
      for (const bool is_query : {true, false}) {
        Indices rows(idx(is_query ? problem_.q_len : problem_.kv_len));
        for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<std::int64_t>(i);
        rows = split_elements(Balanced{}, split_elements(split, rows, cp / degree, ring), degree, ulysses);
        const TensorPart part = is_query ? sharding.home_q(index) : sharding.home_kv(index);
        Indices found;
        for (std::int64_t i = 0; i < part.num_rows(); ++i) found.push_back(to_global(part.rows, i));
        trial_.require(found == rows, "home_rows", "rank ", request_.ranks[idx(index)], " has the ",
                       is_query ? "query" : "key", " rows ", join(found), ", where ", to_string(balance),
                       " says ", join(rows));
      }
    }
  }

  // ---- other problems whose results follow ----

  AttentionRun run(const AttentionTestData& data, const AttentionRequest& request) {
    return trial_.property("law run", [&] { return run_attention(data, request, ran_.options); });
  }
  AttentionValues values() const { return data_.inputs(); }

  double tolerance_of(const AttentionRun& run, std::string_view name) const {
    for (const TensorError& error : run.errors) {
      if (error.tensor == name) return error.tolerance;
    }
    return 0;
  }

  // `other` is what the law says results become. `exact`: bit for bit; else as far as both may be from the
  // truth.
  void require_equal(std::string_view law, std::string_view name, const Values& expected, const Values& found,
                     double tolerance) {
    trial_.require(expected.size() == found.size(), law, name, " has ", found.size(), " values of ",
                   expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      if (expected[i] == found[i] || (std::isnan(expected[i]) && std::isnan(found[i]))) continue;
      trial_.require(std::abs(expected[i] - found[i]) <= tolerance, law, name, " at ", i, ": got ", found[i],
                     ", expected ", expected[i], tolerance > 0 ? str(" within ", tolerance) : "");
    }
  }

  // Twice v: every product with it doubles, and no rounding changes, where exponents have room (not in f16).
  // Of latent rows, twice the rows of the weight that make v.
  void scaled() {
    if (problem_.dtype == DType::f16) return;
    AttentionValues twice = values();
    for (double& value : twice.v) value *= 2;
    const std::int64_t up = problem_.up_rows(), rank = problem_.latent.rank;
    for (std::size_t i = 0; i < twice.kv_up.size(); ++i) {
      if (static_cast<std::int64_t>(i) / rank % up >= problem_.nope_dim()) twice.kv_up[i] *= 2;
    }
    const AttentionTestData data(problem_, std::move(twice), data_.seed());
    const AttentionRun other = run(data, request_);
    const double factors[] = {2, 1, 2, 2, 1, 2};  // of out, lse, dq, dk, dv, dlatent
    for (std::size_t i = 0; i < std::size(kResults); ++i) {
      Values expected = ran_.run.results.*kResults[i].values;
      for (double& value : expected) value *= factors[i];
      require_equal("scaled", kResults[i].name, expected, other.results.*kResults[i].values, 0);
    }
  }

  void swapped() {
    if (problem_.batch == 1 || problem_.drops()) return;  // dropout asks for the entry's number
    AttentionRequest request = request_;
    std::reverse(request.problem.cu_seqlens_of_entry.begin(), request.problem.cu_seqlens_of_entry.end());
    AttentionValues reversed = values();
    for (Values* tensor : {&reversed.q, &reversed.k, &reversed.v, &reversed.dout, &reversed.latent})
      *tensor = reversed_entries(*tensor, problem_.batch);
    const AttentionTestData data(request.problem, std::move(reversed));
    compare("swapped", run(data, request),
            [&](const NamedValues&, const Values& found) { return reversed_entries(found, problem_.batch); });
  }

  // Another document before all others: rows behind it see what they saw.
  void shifted() {
    if (problem_.q_len != problem_.kv_len || problem_.query_offset) return;
    if (problem_.drops() || problem_.chunk) return;  // both ask for the rows' numbers
    Numbers numbers(data_.seed());
    const std::int64_t more = numbers.in(1, 5);
    AttentionRequest request = request_;
    AttentionProblem& problem = request.problem;
    problem.q_len += more, problem.kv_len += more;
    const auto with_document = [&](std::vector<std::int64_t>& ends) {
      if (ends.empty()) ends = {0, problem_.kv_len};
      for (std::int64_t& end : ends) end += more;
      ends.insert(ends.begin(), 0);
    };
    if (problem.cu_seqlens_of_entry.empty())
      with_document(problem.cu_seqlens);
    else
      for (auto& ends : problem.cu_seqlens_of_entry) with_document(ends);
    const auto longer = [&](const Values& tensor, std::string_view like) {
      return with_rows_before(tensor, dims_of(problem_, like), more, tensor);
    };
    AttentionValues longer_ones = values();
    longer_ones.q = longer(data_.q(), "dq"), longer_ones.dout = longer(data_.dout(), "out");
    if (problem_.has_latent()) {
      longer_ones.latent = longer(data_.latent(), "dlatent");
    } else {
      longer_ones.k = longer(data_.k(), "dk"), longer_ones.v = longer(data_.v(), "dv");
    }
    const AttentionTestData data(problem, std::move(longer_ones));
    compare("shifted", run(data, request), [&](const NamedValues& result, const Values& found) {
      return without_rows_before(found, dims_of(problem, result.name), more);
    });
  }

  // All strategies compute the same.
  void other_strategy() {
    Numbers numbers(data_.seed());
    const int cp = static_cast<int>(request_.ranks.size());
    const std::vector<Strategy> all = standard_strategies(problem_, cp);
    AttentionRequest request = request_;
    request.strategy = all[numbers.below(all.size())];
    if (request.strategy.ulysses_degree > problem_.q_heads) return;
    compare("other_strategy", run(data_, request),
            [](const NamedValues&, const Values& found) { return found; });
  }

  // `made_from(result, found)`: what the other run's result is as one of this.
  template <class MadeFrom>
  void compare(std::string_view law, const AttentionRun& other, const MadeFrom& made_from) {
    for (const NamedValues& result : kResults) {
      const Values& ours = ran_.run.results.*result.values;
      const Values& theirs = other.results.*result.values;
      if (ours.empty() || theirs.empty()) continue;
      require_equal(law, result.name, ours, made_from(result, theirs),
                    tolerance_of(ran_.run, result.name) + tolerance_of(other, result.name));
    }
  }

  const AttentionRequest& request_;
  const AttentionProblem& problem_;
  const AttentionTestData& data_;
  const RanAttention& ran_;
  const Trial& trial_;
};

}  // namespace

void check_attention_laws(const AttentionRequest& request, const AttentionTestData& data,
                          const RanAttention& ran, const Trial& trial) {
  Laws(request, data, ran, trial).check_all();
}

}  // namespace cp::sim
