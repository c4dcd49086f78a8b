#include "shared/recurrence/problem.h"

#include <cmath>
#include <limits>
#include <numeric>

#include "shared/base/error.h"
#include "shared/base/nearest.h"
#include "shared/base/text.h"
#include "shared/plan/plan_text.h"
#include "shared/recurrence/chunks.h"

namespace cp {
namespace {

// Throws if the product of the sizes, in elements of 4 bytes, has 2^63 bytes or more.
void require_countable(std::string_view what, std::initializer_list<std::int64_t> sizes) {
  std::int64_t elements = 4;
  for (const std::int64_t size : sizes) {
    if (size > std::numeric_limits<std::int64_t>::max() / elements)
      throw InvalidInput(str(what, " with the sizes ", join(sizes, "x"), " has 2^63 bytes or more"));
    elements *= size;
  }
}

void require_documents(const RecurrenceProblem& problem) {
  const std::vector<std::int64_t>& ends = problem.cu_seqlens;
  if (ends.empty()) return;
  if (problem.cached_state) {
    throw InvalidInput(str("documents ", join(ends, "/"),
                           ": a sequence that goes on from a cached state is one document; leave cu_seqlens "
                           "out, and give each request a batch entry"));
  }
  for (std::size_t i = 1; i < ends.size(); ++i) {
    if (ends[i] < ends[i - 1])
      throw InvalidInput(str("documents ", join(ends, "/"), ": ", ends[i], " comes after ", ends[i - 1],
                             "; cu_seqlens do not descend"));
  }
  if (ends.front() != 0 || ends.back() != problem.seq_len) {
    throw InvalidInput(str("documents ", join(ends, "/"), " go from ", ends.front(), " to ", ends.back(),
                           ", and the sequence from 0 to ", problem.seq_len,
                           "; every row of a recurrence belongs to a document: let the first one begin at 0 "
                           "and the last one end at ",
                           problem.seq_len));
  }
}

}  // namespace

double RecurrenceProblem::output_scale() const {
  return scale.value_or(1 / std::sqrt(static_cast<double>(key_dim)));
}

std::vector<std::int64_t> RecurrenceProblem::document_starts() const {
  return cp::document_starts(cu_seqlens, seq_len);
}

std::string_view name(RecurrenceRule rule) { return name_in(kRecurrenceRules, rule); }

RecurrenceRule parse_recurrence_rule(std::string_view text) {
  std::vector<std::string_view> names;
  for (const auto& [rule, known] : kRecurrenceRules) {
    if (text == known) return rule;
    names.push_back(known);
  }
  throw InvalidInput(str("recurrence '", text,
                         "' is unknown; use decay (Mamba-2) or delta (gated delta net); the nearest is ",
                         nearest_name(text, names)));
}

void validate_problem(const RecurrenceProblem& problem) {
  const std::pair<std::string_view, std::int64_t> sizes[] = {
      {"seq_len", problem.seq_len},         {"batch", problem.batch},      {"key_heads", problem.key_heads},
      {"value_heads", problem.value_heads}, {"head_dim", problem.key_dim}, {"v_head_dim", problem.value_dim}};
  for (const auto& [what, size] : sizes) {
    if (size < 1) throw InvalidInput(str(what, "=", size, " is no size; use at least 1"));
  }
  if (problem.value_heads % problem.key_heads != 0) {
    // The nearest number below that divides them; of absurd numbers any.
    constexpr std::int64_t kMostTried = 1 << 16;
    std::int64_t nearest =
        problem.key_heads > kMostTried ? std::gcd(problem.value_heads, problem.key_heads) : problem.key_heads;
    while (problem.value_heads % nearest != 0) --nearest;
    throw InvalidInput(str("key_heads=", problem.key_heads, " does not divide value_heads=",
                           problem.value_heads, "; use key_heads=", nearest));
  }
  if (!is_floating(problem.dtype))
    throw InvalidInput(str("dtype ", name(problem.dtype), " has no fractions; use f32, f16 or bf16"));
  if (!(std::abs(problem.output_scale()) <= static_cast<double>(std::numeric_limits<float>::max())))
    throw InvalidInput(str("scale ", problem.output_scale(), " is no number of f32; use one below 3e38"));
  require_countable("a tensor of rows", {problem.batch, problem.seq_len, problem.value_heads,
                                         std::max(problem.key_dim, problem.value_dim)});
  require_countable("a state", {problem.batch, problem.value_heads, problem.key_dim,
                                std::max(problem.key_dim, problem.value_dim)});
  // The states of about 2 sqrt(rows) rows, which the backward pass keeps (recurrence_rules.h).
  const auto kept = static_cast<std::int64_t>(2 * std::sqrt(static_cast<double>(problem.seq_len))) + 4;
  require_countable("what the backward pass keeps",
                    {problem.batch, problem.value_heads, problem.key_dim, problem.value_dim, kept});
  require_documents(problem);
}

std::string to_string(const RecurrenceProblem& problem) {
  const std::size_t documents = problem.document_starts().size();
  return str(name(problem.rule), " seq ", problem.seq_len, ", batch ", problem.batch, ", heads ",
             problem.key_heads, "/", problem.value_heads, ", dims ", problem.key_dim, "/", problem.value_dim,
             ", ", name(problem.dtype), documents > 1 ? str(", ", documents, " documents") : "",
             problem.cached_state ? ", from a cached state" : "");
}

Hasher& hash(Hasher& hasher, const RecurrenceProblem& problem) {
  hasher.add(name(problem.rule)).add(problem.batch).add(problem.seq_len).add(problem.key_heads);
  hasher.add(problem.value_heads).add(problem.key_dim).add(problem.value_dim).add(name(problem.dtype));
  hasher.add(problem.output_scale()).add_all(problem.document_starts());
  if (problem.cached_state) hasher.add(std::string_view("cached state"));
  return hasher;
}

}  // namespace cp
