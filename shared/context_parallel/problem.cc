#include "shared/context_parallel/problem.h"

#include <algorithm>
#include <cmath>

#include "shared/base/error.h"

namespace cp {
namespace {

// Far beyond every position; four such lengths add up to what mask_slices.cc takes for no limit, which is far
// from overflowing.
constexpr std::int64_t kLongest = std::int64_t{1} << 58;

void require_at_least(std::int64_t value, std::int64_t least, const char* what) {
  if (value < least) throw InvalidInput(str(what, "=", value, "; use at least ", least));
}

void validate_documents(const AttentionProblem& problem, const std::vector<std::int64_t>& ends) {
  if (ends.front() != 0) {
    throw InvalidInput(str("documents ", join(ends, "/"), " begin with ", ends.front(), "; begin with 0"));
  }
  for (std::size_t d = 1; d < ends.size(); ++d) {
    if (ends[d] < ends[d - 1]) {
      throw InvalidInput(str("documents ", join(ends, "/"), " descend from ", ends[d - 1], " to ", ends[d],
                             "; give cumulative lengths, for example 0/10/50 for lengths 10 and 40"));
    }
  }
  if (ends.back() > problem.kv_len) {
    throw InvalidInput(str("documents ", join(ends, "/"), " end at ", ends.back(), ", beyond kv_len=",
                           problem.kv_len, "; end at ", problem.kv_len, ", or before it to leave padding"));
  }
}

void validate_documents(const AttentionProblem& problem) {
  const auto& of_entry = problem.cu_seqlens_of_entry;
  if (!problem.cu_seqlens.empty()) validate_documents(problem, problem.cu_seqlens);
  if (of_entry.empty()) return;
  if (!problem.cu_seqlens.empty()) {
    throw InvalidInput(str("documents are given for all batch entries (", join(problem.cu_seqlens, "/"),
                           ") and also for each one; give only one of the two"));
  }
  if (static_cast<std::int64_t>(of_entry.size()) != problem.batch) {
    throw InvalidInput(str("documents are given for ", of_entry.size(), " batch entries (",
                           documents_text(problem), "), but batch=", problem.batch,
                           "; give one list for all entries, or ", problem.batch, " lists"));
  }
  for (std::size_t entry = 0; entry < of_entry.size(); ++entry) {
    if (of_entry[entry].empty()) {
      throw InvalidInput(str("batch entry ", entry, " has no documents, but others have some; use 0/",
                             problem.kv_len, " for one document of all keys"));
    }
    validate_documents(problem, of_entry[entry]);
  }
}

}  // namespace

std::string_view name(TensorFormat format) {
  switch (format) {
    case TensorFormat::bshd:
      return "bshd";
    case TensorFormat::bnsd:
      return "bnsd";
    case TensorFormat::sbhd:
      return "sbhd";
  }
  return "";
}

int seq_dim(TensorFormat format) { return static_cast<int>(name(format).find_first_of('s')); }

TensorFormat parse_tensor_format(std::string_view text) {
  for (const TensorFormat format : {TensorFormat::bshd, TensorFormat::bnsd, TensorFormat::sbhd}) {
    if (text == name(format)) return format;
  }
  throw InvalidInput(str("unknown tensor format '", text, "'; use bshd, bnsd or sbhd"));
}

namespace {

// What the dropout's generator counts in 32 bits (shared/kernels/philox.h).
void validate_dropout(const AttentionProblem& problem) {
  const Dropout& dropout = problem.dropout;
  if (!(dropout.probability >= 0 && dropout.probability < 1)) {
    throw InvalidInput(str("dropout=", dropout.probability,
                           " is not a probability below 1; use, for example, 0.1, or 0 for none"));
  }
  if (!problem.drops()) return;
  const auto require_counted = [](std::string_view what, double count) {
    if (count > 0x1p32) {
      throw InvalidInput(
          str("dropout with ", what, " ", count,
              ": its generator counts them in 32 bits; use 4294967296 at most, or no dropout"));
    }
  };
  require_counted("a number of queries of", static_cast<double>(problem.q_len));
  require_counted("a number of keys of", static_cast<double>(problem.kv_len));
  require_counted(
      "heads of all batch entries of",
      static_cast<double>(problem.batch) * static_cast<double>(std::max(problem.q_heads, dropout.all_heads)));
  if (dropout.layer < 0) throw InvalidInput(str("dropout of layer ", dropout.layer, "; use 0 or more"));
  if (dropout.first_head < 0 || dropout.all_heads < 0) {
    throw InvalidInput(str("dropout with heads from number ", dropout.first_head, " on, of ",
                           dropout.all_heads, " in all; use 0 or more for both"));
  }
  if (dropout.first_head + problem.q_heads > std::max(problem.q_heads, dropout.all_heads)) {
    throw InvalidInput(str("dropout with ", problem.q_heads, " query heads from number ", dropout.first_head,
                           " on, of ", dropout.all_heads, " in all; use ",
                           dropout.first_head + problem.q_heads, " or more in all"));
  }
  require_counted("a layer of", static_cast<double>(dropout.layer) + 1);
}

void validate_latent(const AttentionProblem& problem) {
  const auto& [rank, rope_dim, absorbed] = problem.latent;
  require_at_least(rank, 0, "latent");
  require_at_least(rope_dim, 0, "rope_dim");
  if (rank == 0 && rope_dim > 0) {
    throw InvalidInput(
        str("rope_dim=", rope_dim,
            " is a part of latent rows, and latent=0 has none; use, for example, latent=512, or "
            "leave rope_dim out"));
  }
  if (absorbed) {
    const std::int64_t row = rank + rope_dim;
    if (rank > 0 && problem.kv_heads == 1 && problem.head_dim == row && problem.v_head_dim == rank) return;
    throw InvalidInput(str("absorbed queries meet latent rows of ", rank, "+", rope_dim,
                           " as one kv head, with keys of ", row, " and values of ", rank, ", and not ",
                           problem.kv_heads, " of ", problem.head_dim, "/", problem.v_head_dim,
                           "; use kv_heads=1, head_dim=", row, " and v_head_dim=", rank,
                           rank > 0 ? "" : ", of a rank of 1 or more"));
  }
  if (rank > 0 && rope_dim >= problem.head_dim) {
    throw InvalidInput(str("rope_dim=", rope_dim, " leaves nothing of head_dim=", problem.head_dim,
                           " to expand from latent rows; use rope_dim=", problem.head_dim - 1,
                           " or less, or head_dim=", rope_dim + 1, " or more"));
  }
}

}  // namespace

double AttentionProblem::scale() const {
  return softmax_scale.value_or(1 / std::sqrt(static_cast<double>(head_dim)));
}

// Bytes of a tensor fit into 64 bits. A tensor without rows counts as one row.
void require_countable(const char* tensor, std::int64_t heads, std::int64_t rows, const char* dim_name,
                       std::int64_t dim, std::int64_t batch) {
  // Elements of at most 8 bytes: 2^62 bytes, as PlanBuilder takes for a buffer.
  constexpr double kMost = 0x1p59;
  const auto count = [](std::int64_t number) {
    return static_cast<double>(std::max<std::int64_t>(number, 1));
  };
  const double others = count(batch) * count(heads) * count(rows);
  if (others * count(dim) <= kMost) return;
  const std::string near = others <= kMost
                               ? str(dim_name, "=", static_cast<std::int64_t>(kMost / others), " at most")
                               : std::string("a smaller batch, fewer heads or a shorter length");
  throw InvalidInput(str(tensor, " of batch=", batch, ", ", heads, " heads, length ", rows, " and ", dim_name,
                         "=", dim, " has more than 2^59 elements; use ", near));
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
  if (problem.chunk) require_at_least(*problem.chunk, 1, "chunk");
  for (const std::int64_t length : {problem.q_len, problem.kv_len, problem.window.value_or(0),
                                    problem.chunk.value_or(0), std::abs(problem.query_offset.value_or(0))}) {
    if (length > kLongest)
      throw InvalidInput(str("the length ", length, " is too large; use at most ", kLongest));
  }
  require_countable("q", problem.q_heads, problem.q_len, "head_dim", problem.head_dim, problem.batch);
  require_countable("k", problem.kv_heads, problem.kv_len, "head_dim", problem.head_dim, problem.batch);
  require_countable("v", problem.kv_heads, problem.kv_len, "v_head_dim", problem.v_head_dim, problem.batch);
  require_countable("out", problem.q_heads, problem.q_len, "v_head_dim", problem.v_head_dim, problem.batch);
  if (problem.q_heads % problem.kv_heads != 0) {
    std::int64_t near = std::min(problem.kv_heads, problem.q_heads);
    while (problem.q_heads % near != 0) --near;
    throw InvalidInput(str("q_heads=", problem.q_heads, " is not a multiple of kv_heads=", problem.kv_heads,
                           "; each kv head serves equally many query heads: use kv_heads=", near));
  }
  if (!std::isfinite(problem.scale())) {
    throw InvalidInput(str("softmax_scale=", problem.scale(), " is not finite; leave it out for 1/sqrt(",
                           problem.head_dim, ")"));
  }
  if (!(problem.softcap >= 0 && std::isfinite(problem.softcap))) {
    throw InvalidInput(str("softcap=", problem.softcap,
                           " bounds no score; use a positive number, for example 50, or 0 for none"));
  }
  validate_dropout(problem);
  validate_latent(problem);
  if (problem.has_latent()) {
    // The weight first: its rank is so small then that the rotated part can be added to it.
    require_countable("kv_up", problem.kv_heads, problem.up_rows(), "latent", problem.latent.rank, 1);
    require_countable("latent", 1, problem.kv_len, "latent", problem.latent.dim(), problem.batch);
  }
  validate_documents(problem);
}

KeyInterval allowed_keys(const AttentionProblem& problem, std::int64_t query) {
  CP_INVARIANT(problem.shares_mask(), "one mask of ", to_string(problem));
  const std::int64_t position = query + problem.offset();
  KeyInterval keys{0, problem.kv_len};
  if (const std::vector<std::int64_t>& ends = problem.cu_seqlens; !ends.empty()) {
    const auto end = std::upper_bound(ends.begin(), ends.end(), position);
    if (end == ends.begin() || end == ends.end()) return {};
    keys = {*(end - 1), *end};
  }
  if (problem.chunk) {
    const std::int64_t begin = floor_div(position, *problem.chunk) * *problem.chunk;
    keys.begin = std::max(keys.begin, begin);
    keys.end = std::min(keys.end, begin + *problem.chunk);
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
  if (problem.chunk) text += str(", chunks of ", *problem.chunk);
  if (!problem.cu_seqlens.empty()) text += str(", ", problem.cu_seqlens.size() - 1, " documents");
  if (!problem.cu_seqlens_of_entry.empty()) {
    std::vector<std::size_t> counts;
    for (const auto& ends : problem.cu_seqlens_of_entry) counts.push_back(ends.size() - 1);
    text += str(", ", join(counts, "/"), " documents by batch entry");
  }
  if (problem.query_offset) text += str(", queries from position ", *problem.query_offset);
  if (problem.softcap != 0) text += str(", scores capped at ", problem.softcap);
  if (problem.sinks) text += ", sinks";
  if (problem.drops()) text += str(", dropout ", problem.dropout.probability);
  if (problem.has_latent()) {
    text += str(", latent rows of ", problem.latent.rank,
                problem.latent.rope_dim > 0 ? str("+", problem.latent.rope_dim) : "",
                problem.latent.absorbed ? ", absorbed" : "");
  }
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
  for (const std::vector<std::int64_t>& ends : problem.cu_seqlens_of_entry) hasher.add_all(ends);
  // Later than the others, so that problems without them keep their digests.
  if (problem.chunk) hasher.add(std::string_view("chunk")).add(*problem.chunk);
  if (problem.softcap != 0) hasher.add(std::string_view("softcap")).add(problem.softcap);
  if (problem.sinks) hasher.add(std::string_view("sinks"));
  if (problem.drops()) {
    const Dropout& dropout = problem.dropout;
    hasher.add(std::string_view("dropout")).add(dropout.probability).add(dropout.layer);
    if (dropout.all_heads > 0) hasher.add(dropout.first_head).add(dropout.all_heads);
    if (dropout.placed) hasher.add(std::string_view("placed"));
  }
  if (problem.has_latent())
    hasher.add(std::string_view("latent")).add(problem.latent.rank).add(problem.latent.rope_dim);
  if (problem.latent.absorbed) hasher.add(std::string_view("absorbed"));
  return hasher;
}

// ---- batch entries with documents of their own ----

std::vector<MaskGroup> mask_groups(const AttentionProblem& problem) {
  if (problem.shares_mask()) return {{0, problem}};
  AttentionProblem one = problem;
  one.cu_seqlens_of_entry.clear(), one.batch = 1;
  std::vector<MaskGroup> groups;
  std::int64_t entry = 0;
  for (const std::vector<std::int64_t>& ends : problem.cu_seqlens_of_entry) {
    if (!groups.empty() && groups.back().problem.cu_seqlens == ends) {
      ++groups.back().problem.batch;
    } else {
      one.cu_seqlens = ends;
      groups.push_back({entry, one});
    }
    ++entry;
  }
  return groups;
}

std::string documents_text(const AttentionProblem& problem) {
  if (problem.shares_mask()) return join(problem.cu_seqlens, "/");
  std::vector<std::string> texts;
  for (const std::vector<std::int64_t>& ends : problem.cu_seqlens_of_entry) texts.push_back(join(ends, "/"));
  return join(texts, ";");
}

void parse_documents(std::string_view text, AttentionProblem& problem) {
  problem.cu_seqlens.clear(), problem.cu_seqlens_of_entry.clear();
  if (trim(text).empty()) return;
  std::vector<std::vector<std::int64_t>> lists;
  for (const std::string_view list : split(text, ';'))
    lists.push_back(parse_ints(list, '/', "end of a document"));
  if (lists.size() == 1) {
    problem.cu_seqlens = std::move(lists.front());
  } else {
    problem.cu_seqlens_of_entry = std::move(lists);
  }
}

}  // namespace cp
