#include "shared/context_parallel/problem.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "shared/base/error.h"

namespace cp {
namespace {

// Far beyond every position, and far from overflowing when positions are added to it.
constexpr std::int64_t kFar = std::int64_t{1} << 60;

void require_at_least(std::int64_t value, std::int64_t least, const char* what) {
  if (value < least) throw InvalidInput(str(what, "=", value, "; use at least ", least));
}

void validate_documents(const AttentionProblem& problem) {
  const std::vector<std::int64_t>& ends = problem.cu_seqlens;
  if (ends.empty()) return;
  if (ends.front() != 0) {
    throw InvalidInput(str("documents ", join(ends, "/"), " begin with ", ends.front(), "; begin with 0"));
  }
  for (std::size_t d = 1; d < ends.size(); ++d) {
    if (ends[d] < ends[d - 1]) {
      throw InvalidInput(str("documents ", join(ends, "/"), " descend from ", ends[d - 1], " to ", ends[d],
                             "; give cumulative lengths, as 0/10/50 for lengths 10 and 40"));
    }
  }
  if (ends.back() > problem.kv_len) {
    throw InvalidInput(str("documents ", join(ends, "/"), " end at ", ends.back(), ", beyond kv_len=",
                           problem.kv_len, "; end at ", problem.kv_len, ", or before it to leave padding"));
  }
}

}  // namespace

std::string_view name(TensorFormat format) { return format == TensorFormat::bshd ? "bshd" : "bnsd"; }

TensorFormat parse_tensor_format(std::string_view text) {
  for (const TensorFormat format : {TensorFormat::bshd, TensorFormat::bnsd}) {
    if (text == name(format)) return format;
  }
  throw InvalidInput(str("unknown tensor format '", text, "'; use bshd or bnsd"));
}

double AttentionProblem::scale() const {
  return softmax_scale.value_or(1 / std::sqrt(static_cast<double>(head_dim)));
}

void validate_problem(const AttentionProblem& problem) {
  require_at_least(problem.batch, 1, "batch");
  require_at_least(problem.q_len, 0, "q_len");
  require_at_least(problem.kv_len, 0, "kv_len");
  require_at_least(problem.q_heads, 1, "q_heads");
  require_at_least(problem.kv_heads, 1, "kv_heads");
  require_at_least(problem.head_dim, 1, "head_dim");
  require_at_least(problem.v_head_dim, 1, "v_head_dim");
  if (problem.window) require_at_least(*problem.window, 1, "window");
  for (const std::int64_t length : {problem.q_len, problem.kv_len, problem.window.value_or(0),
                                    std::abs(problem.query_offset.value_or(0))}) {
    if (length > kFar / 4) throw InvalidInput(str("a length of ", length, " is beyond ", kFar / 4));
  }
  if (problem.q_heads % problem.kv_heads != 0) {
    std::int64_t near = std::min(problem.kv_heads, problem.q_heads);
    while (problem.q_heads % near != 0) --near;
    throw InvalidInput(str("q_heads=", problem.q_heads, " is no multiple of kv_heads=", problem.kv_heads,
                           "; each kv head serves equally many query heads: use kv_heads=", near));
  }
  if (!std::isfinite(problem.scale())) {
    throw InvalidInput(str("softmax_scale=", problem.scale(), " is not finite; leave it out for 1/sqrt(",
                           problem.head_dim, ")"));
  }
  validate_documents(problem);
}

KeyInterval allowed_keys(const AttentionProblem& problem, std::int64_t query) {
  const std::int64_t position = query + problem.offset();
  KeyInterval keys{0, problem.kv_len};
  if (const std::vector<std::int64_t>& ends = problem.cu_seqlens; !ends.empty()) {
    const auto end = std::upper_bound(ends.begin(), ends.end(), position);
    if (end == ends.begin() || end == ends.end()) return {};
    keys = {*(end - 1), *end};
  }
  if (problem.causal) keys.end = std::min(keys.end, position + 1);
  if (problem.window) {
    keys.begin = std::max(keys.begin, position - *problem.window + 1);
    keys.end = std::min(keys.end, position + *problem.window);
  }
  return keys.begin < keys.end ? keys : KeyInterval{};
}

std::string to_string(const AttentionProblem& problem) {
  std::string text = str(problem.batch, " x ", problem.q_len);
  if (problem.kv_len != problem.q_len) text += str(" against ", problem.kv_len, " keys");
  text += str(" x ", problem.q_heads, " heads");
  if (problem.kv_heads != problem.q_heads) text += str(" (", problem.kv_heads, " kv)");
  text += str(" x ", problem.head_dim);
  if (problem.v_head_dim != problem.head_dim) text += str("/", problem.v_head_dim);
  text += str(" ", name(problem.dtype));
  if (problem.causal) text += ", causal";
  if (problem.window) text += str(", window ", *problem.window);
  if (!problem.cu_seqlens.empty()) text += str(", ", problem.cu_seqlens.size() - 1, " documents");
  if (problem.query_offset) text += str(", queries from position ", *problem.query_offset);
  return text;
}

Hasher& hash(Hasher& hasher, const AttentionProblem& problem) {
  hasher.add(std::string_view("attention"));
  for (const std::int64_t value :
       {problem.batch, problem.q_len, problem.kv_len, problem.q_heads, problem.kv_heads, problem.head_dim,
        problem.v_head_dim, problem.offset(), problem.window.value_or(0)}) {
    hasher.add(value);
  }
  hasher.add(name(problem.dtype)).add(name(problem.format)).add(problem.scale()).add(problem.causal);
  hasher.add(static_cast<std::int64_t>(problem.cu_seqlens.size()));
  for (const std::int64_t end : problem.cu_seqlens) hasher.add(end);
  return hasher;
}

}  // namespace cp
