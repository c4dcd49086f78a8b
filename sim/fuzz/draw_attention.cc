// Attention over a split sequence: a problem, a strategy that is legal for it, and options.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "shared/base/text.h"
#include "shared/context_parallel/strategy.h"
#include "shared/mesh/mesh.h"
#include "sim/fuzz/draw.h"
#include "traces/types_proto.h"

namespace cp::sim {
namespace {

class AttentionDraw {
 public:
  AttentionDraw(Numbers& numbers, const Swarm& swarm) : numbers_(numbers), swarm_(swarm) {}

  proto::Attention job() {
    choose_ranks();
    choose_sizes();
    choose_mask();
    choose_strategy();
    choose_options();
    choose_latent();
    return job_;
  }

 private:
  void choose_ranks() {
    ranks_ = swarm_.choose<int>(numbers_, {{"cp.1", 1},
                                           {"cp.2", 2},
                                           {"cp.3", 3},
                                           {"cp.4", 4},
                                           {"cp.5", 5},
                                           {"cp.6", 6},
                                           {"cp.8", 8},
                                           {"cp.9", 9},
                                           {"cp.12", 12},
                                           {"cp.16", 16}});
    std::string mesh = str("cp=", ranks_);
    if (swarm_.take(numbers_, "ranks.permuted")) {
      std::vector<Rank> ranks(static_cast<std::size_t>(ranks_) + 2);
      std::iota(ranks.begin(), ranks.end(), 0);
      numbers_.shuffle(ranks);
      ranks.resize(static_cast<std::size_t>(ranks_));
      mesh += str("@", join(ranks, "/"));
    }
    job_.set_mesh(mesh);
  }

  // Of rows: around multiples of what splits them, and fewer than that.
  std::int64_t length() {
    switch (swarm_.choose<int>(numbers_, {{"length.near", 0},
                                          {"length.near.again", 0},
                                          {"length.one", 1},
                                          {"length.few", 2},
                                          {"length.prime", 3},
                                          {"length.long", 4}})) {
      case 1:
        return 1;
      case 2:
        return numbers_.in(1, std::max(1, ranks_ - 1));
      case 3:
        return numbers_.of({7, 13, 29, 41, 53});
      case 4:
        return numbers_.in(48, 160);
      default:
        return std::max<std::int64_t>(1,
                                      ranks_ * numbers_.in(1, 6) * numbers_.of({1, 2}) + numbers_.in(-1, 1));
    }
  }

  void choose_sizes() {
    q_len_ = kv_len_ = length();
    if (swarm_.take(numbers_, "kv_len")) kv_len_ = length();
    if (swarm_.take(numbers_, "kv_len.thousands") &&
        numbers_.one_in(8)) {  // sums so long that their errors could grow
      q_len_ = numbers_.in(1, 8);
      kv_len_ = numbers_.in(2048, 8192);
    }
    job_.set_seq_len(q_len_);
    if (kv_len_ != q_len_) job_.set_kv_len(kv_len_);
    batch_ = swarm_.choose<std::int64_t>(
        numbers_, {{"batch.1", 1}, {"batch.1.again", 1}, {"batch.2", 2}, {"batch.3", 3}});
    if (batch_ > 1) job_.set_batch(batch_);
    const auto kv = swarm_.choose<std::int64_t>(
        numbers_, {{"kv.1", 1}, {"kv.1.again", 1}, {"kv.2", 2}, {"kv.3", 3}, {"kv.4", 4}});
    q_heads_ = kv * swarm_.choose<std::int64_t>(
                        numbers_, {{"group.1", 1}, {"group.2", 2}, {"group.3", 3}, {"group.6", 6}});
    job_.set_q_heads(q_heads_);
    job_.set_kv_heads(kv);
    const auto dim =
        swarm_.choose<std::int64_t>(numbers_, {{"dim.1", 1}, {"dim.4", 4}, {"dim.8", 8}, {"dim.16", 16}});
    job_.set_head_dim(dim);
    if (swarm_.take(numbers_, "v_head_dim")) job_.set_v_head_dim(numbers_.of({1, 2, 8}));
    dtype_ = swarm_.choose<DType>(
        numbers_,
        {{"f32", DType::f32}, {"f32.again", DType::f32}, {"bf16", DType::bf16}, {"f16", DType::f16}});
    job_.set_dtype(to_proto(dtype_));
    if (swarm_.take(numbers_, "format")) job_.set_format(numbers_.of<std::string>({"bnsd", "sbhd"}));
    if (swarm_.take(numbers_, "softmax_scale")) job_.set_softmax_scale(numbers_.of({0.25, 1.0, 0.0}));
    if (swarm_.take(numbers_, "softcap")) job_.set_softcap(numbers_.of({0.5, 2.0, 30.0}));
    if (swarm_.take(numbers_, "sinks")) job_.set_sinks(true);
    if (swarm_.take(numbers_, "dropout")) {
      job_.set_dropout(numbers_.of({0.1, 0.5, 0.9}));
      job_.set_dropout_layer(numbers_.in(0, 3));
    }
  }

  // Rows that are narrower than what they expand to, and wider ones. Last, when heads and pieces are known.
  void choose_latent() {
    if (!swarm_.take(numbers_, "latent")) return;
    job_.set_latent(numbers_.of({1, 3, 8, 40}));
    if (job_.head_dim() > 1 && swarm_.take(numbers_, "rope_dim"))
      job_.set_rope_dim(numbers_.in(1, std::min<std::int64_t>(job_.head_dim() - 1, 8)));
    const std::string gradients = job_.gradients();
    if (!gradients.empty() && gradients != "dq") job_.set_gradients("dk,dv");
    if (swarm_.take(numbers_, "keys.heads")) {
      job_.set_keys("heads");
    } else if (swarm_.take(numbers_, "keys.latent") && !job_.has_pieces() && job_.strategy() != "pass_q") {
      job_.set_keys("latent");
    }
  }

  // Of one to four tokens each.
  std::string many_documents() {
    std::vector<std::int64_t> ends = {0};
    for (std::int64_t end = numbers_.in(1, 4); end < kv_len_; end += numbers_.in(1, 4)) ends.push_back(end);
    ends.push_back(kv_len_);
    return join(ends, "/");
  }

  std::string documents() {
    std::vector<std::int64_t> ends = {0};
    enum class Kind { some, ones, even, many };
    switch (swarm_.choose<Kind>(numbers_, {{"documents.some", Kind::some},
                                           {"documents.ones", Kind::ones},
                                           {"documents.even", Kind::even},
                                           {"documents.many", Kind::many}})) {
      case Kind::many:
        return many_documents();
      case Kind::some:
        for (std::int64_t left = numbers_.in(1, 5); left > 0; --left) ends.push_back(numbers_.in(0, kv_len_));
        if (!swarm_.take(numbers_, "padding")) ends.push_back(kv_len_);
        break;
      case Kind::ones:  // a few of one token, then the rest
        for (std::int64_t end = 1; end <= std::min<std::int64_t>(kv_len_, numbers_.in(1, 6)); ++end)
          ends.push_back(end);
        if (!swarm_.take(numbers_, "padding")) ends.push_back(kv_len_);
        break;
      case Kind::even:
        for (std::int64_t part = 1, parts = numbers_.in(1, 4); part <= parts; ++part)
          ends.push_back(kv_len_ * part / parts);
        break;
    }
    std::sort(ends.begin(), ends.end());
    return join(ends, "/");
  }

  void choose_mask() {
    if (swarm_.take(numbers_, "causal")) job_.set_causal(true);
    if (swarm_.take(numbers_, "window"))
      job_.set_window(numbers_.in(1, std::max<std::int64_t>(2, kv_len_ / 2)));
    if (swarm_.take(numbers_, "chunk")) job_.set_chunk(numbers_.in(1, std::max<std::int64_t>(2, kv_len_)));
    if (swarm_.take(numbers_, "query_offset")) job_.set_query_offset(numbers_.in(-kv_len_ / 2, kv_len_));
    if (!swarm_.take(numbers_, "documents")) return;
    std::string text = documents();
    if (batch_ > 1 && swarm_.take(numbers_, "documents.of_entry")) {
      for (std::int64_t entry = 1; entry < batch_; ++entry)
        text += ";" + (numbers_.one_in(4) ? text.substr(0, text.find(';')) : documents());
    }
    job_.set_documents(text);
  }

  std::vector<std::int64_t> divisors(std::int64_t n, std::int64_t limit) const {
    std::vector<std::int64_t> result;
    for (std::int64_t d = 1; d <= n && d <= limit; ++d) {
      if (n % d == 0) result.push_back(d);
    }
    return result;
  }

  void choose_strategy() {
    auto strategy = swarm_.choose<std::string>(numbers_, {{"ring", "ring"},
                                                          {"ring.again", "ring"},
                                                          {"double_ring", "double_ring"},
                                                          {"all_gather", "all_gather"},
                                                          {"need_only", "need_only"},
                                                          {"pass_q", "pass_q"},
                                                          {"ulysses", "ulysses"},
                                                          {"ulysses_ring", "ulysses_ring"},
                                                          {"ulysses_all_gather", "ulysses_all_gather"}});
    if (strategy == "ulysses" && q_heads_ < ranks_) strategy = "ulysses_ring";
    job_.set_strategy(strategy);
    if (is_hybrid(strategy)) {
      job_.set_ulysses_degree(static_cast<int>(numbers_.of(divisors(ranks_, q_heads_))));
      if (swarm_.take(numbers_, "ring_inner")) job_.set_axis_order("ring_inner");
    }
    if (has_inner_rings(strategy))
      job_.set_inner_ring(static_cast<int>(numbers_.of(divisors(ranks_, ranks_))));
    if (swarm_.take(numbers_, "rotation.all_gather")) job_.set_rotation("all_gather");
    job_.set_balance(
        swarm_.choose<std::string>(numbers_, {{"contiguous", "contiguous"},
                                              {"head_tail", "head_tail"},
                                              {"head_tail.again", "head_tail"},
                                              {"striped", "striped:1"},
                                              {"striped.3", "striped:3"},
                                              {"cost", "cost:4"},
                                              {"head_tail_exchange", "head_tail_exchange"},
                                              {"per_document", "per_document:contiguous"},
                                              {"per_document.head_tail", "per_document:head_tail"},
                                              {"per_document.striped", "per_document:striped:2"}}));
    if (swarm_.take(numbers_, "dkv.input")) job_.set_dkv_dtype("input");
    if (swarm_.take(numbers_, "merge.input")) job_.set_merge_dtype("input");
    if (swarm_.take(numbers_, "send_empty")) job_.set_send_empty(true);
    if (swarm_.take(numbers_, "slots.3")) job_.set_slots(kMostSlots);
    // Legal where each rank has two kv heads at least, and something comes at once.
    const bool rotates = strategy == "ring" || strategy == "double_ring" || strategy == "pass_q";
    const int degree = strategy == "ulysses" ? ranks_ : job_.has_ulysses_degree() ? job_.ulysses_degree() : 1;
    if (swarm_.take(numbers_, "pieces.2") && ranks_ > 1 && job_.kv_heads() >= std::int64_t{2} * degree &&
        (degree > 1 || !(rotates || is_hybrid(strategy)))) {
      job_.set_pieces(2);
    }
    if (swarm_.take(numbers_, "merges.beside")) job_.set_merges("beside");
  }

  void choose_options() {
    job_.set_seed(numbers_.next() % 1000);
    if (swarm_.take(numbers_, "lse.computed")) job_.set_lse("computed");
    if (swarm_.take(numbers_, "backward")) {
      job_.set_backward(true);
      if (swarm_.take(numbers_, "gradients"))
        job_.set_gradients(numbers_.of<std::string>({"dq", "dk", "dv", "dq,dk", "dq,dv", "dk,dv"}));
    }
    if (!swarm_.take(numbers_, "target")) return;
    if (!numbers_.one_in(4)) {  // what fused attention takes
      job_.set_dtype(to_proto(numbers_.of({DType::bf16, DType::f16})));
      job_.set_head_dim(numbers_.of({8, 16}));
      job_.clear_v_head_dim();
      if (batch_ > 1 && ranks_ == 1 && numbers_.one_in(4)) one_long_among_many();
    }
    job_.set_target(swarm_.choose<std::string>(
        numbers_, {{"sm80", "sm80"}, {"sm90", "sm90"}, {"sm100", "sm100"}, {"sm120", "sm120"}}));
  }

  // No packed call takes documents of several batch entries: a call each. Of more than 64 those that are
  // worth a launch stay (see shared/context_parallel/attention_calls.h): one document of 2e8 operations, and
  // so many of one or two tokens.
  void one_long_among_many() {
    // The operations of a document that is worth a launch of its own (attention_calls.h).
    constexpr double kWorthALaunch = 2e8;
    constexpr std::int64_t kDim = 128;
    const double of_pair = 2 * static_cast<double>(batch_ * q_heads_ * 2 * kDim);
    std::vector<std::int64_t> ends = {0, static_cast<std::int64_t>(std::sqrt(kWorthALaunch / of_pair)) + 2};
    for (std::int64_t left = numbers_.in(65, 90); left > 0; --left)
      ends.push_back(ends.back() + numbers_.in(1, 2));
    job_.set_documents(join(ends, "/"));
    q_len_ = kv_len_ = ends.back();
    job_.set_seq_len(q_len_);
    job_.set_head_dim(kDim);
    job_.clear_kv_len(), job_.clear_causal(), job_.clear_window(), job_.clear_chunk(),
        job_.clear_query_offset();
  }

  Numbers& numbers_;
  const Swarm& swarm_;
  proto::Attention job_;
  int ranks_ = 1;
  std::int64_t q_len_ = 0, kv_len_ = 0, q_heads_ = 1, batch_ = 1;
  DType dtype_ = DType::f32;
};

}  // namespace

proto::Attention draw_attention(Numbers& numbers, const Swarm& swarm) {
  return AttentionDraw(numbers, swarm).job();
}

}  // namespace cp::sim
