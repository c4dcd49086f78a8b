// A recurrent layer over a split sequence: a problem, and a strategy that is legal for it.
#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "shared/base/text.h"
#include "shared/recurrence/strategy.h"
#include "sim/fuzz/draw.h"
#include "traces/types_proto.h"

namespace cp::sim {
namespace {

class RecurrenceDraw {
 public:
  RecurrenceDraw(Numbers& numbers, const Swarm& swarm) : numbers_(numbers), swarm_(swarm) {}

  proto::Recurrence job() {
    choose_ranks();
    choose_sizes();
    if (swarm_.take(numbers_, "documents")) job_.set_documents(documents());
    choose_strategy();
    job_.set_backward(swarm_.take(numbers_, "backward"));
    if (swarm_.take(numbers_, "target")) job_.set_target(numbers_.of<std::string>({"sm80", "sm90", "sm100"}));
    job_.set_seed(numbers_.next() % 1000);
    return job_;
  }

 private:
  void choose_ranks() {
    ranks_ = swarm_.choose<int>(
        numbers_,
        {{"cp.1", 1}, {"cp.2", 2}, {"cp.3", 3}, {"cp.4", 4}, {"cp.5", 5}, {"cp.8", 8}, {"cp.11", 11}});
    std::string mesh = str("cp=", ranks_);
    if (swarm_.take(numbers_, "ranks.permuted")) {
      std::vector<Rank> ranks(static_cast<std::size_t>(ranks_) + 1);
      std::iota(ranks.begin(), ranks.end(), 0);
      numbers_.shuffle(ranks);
      ranks.resize(static_cast<std::size_t>(ranks_));
      mesh += str("@", join(ranks, "/"));
    }
    job_.set_mesh(mesh);
  }

  void choose_sizes() {
    job_.set_rule(swarm_.choose<std::string>(numbers_, {{"rule.delta", "delta"}, {"rule.decay", "decay"}}));
    enum class Length { near, few, any };
    switch (swarm_.choose<Length>(
        numbers_,
        {{"length.near", Length::near}, {"length.few", Length::few}, {"length.any", Length::any}})) {
      case Length::near:
        length_ = std::max<std::int64_t>(1, ranks_ * numbers_.in(1, 8) + numbers_.in(-1, 1));
        break;
      case Length::few:
        length_ = numbers_.in(1, std::max(1, ranks_));
        break;
      case Length::any:
        length_ = numbers_.in(1, 120);
    }
    job_.set_seq_len(length_);
    if (swarm_.take(numbers_, "batch")) job_.set_batch(numbers_.in(2, 3));
    key_heads_ = swarm_.choose<std::int64_t>(
        numbers_, {{"keys.1", 1}, {"keys.2", 2}, {"keys.3", 3}, {"keys.as.ranks", ranks_}});
    job_.set_key_heads(key_heads_);
    if (swarm_.take(numbers_, "group")) job_.set_value_heads(key_heads_ * numbers_.in(2, 3));
    job_.set_head_dim(swarm_.choose<std::int64_t>(numbers_, {{"dim.1", 1}, {"dim.3", 3}, {"dim.8", 8}}));
    if (swarm_.take(numbers_, "v_head_dim")) job_.set_v_head_dim(numbers_.of({1, 2, 7}));
    job_.set_dtype(to_proto(swarm_.choose<DType>(
        numbers_,
        {{"f32", DType::f32}, {"f32.again", DType::f32}, {"bf16", DType::bf16}, {"f16", DType::f16}})));
    if (swarm_.take(numbers_, "scale")) job_.set_scale(numbers_.of({0.25, 1.0, 0.0}));
  }

  std::string documents() {
    std::vector<std::int64_t> ends = {0, length_};
    const bool many = swarm_.take(numbers_, "documents.many");
    for (std::int64_t left = many ? length_ / 3 : numbers_.in(1, 4); left > 0; --left)
      ends.push_back(numbers_.in(0, length_));
    std::sort(ends.begin(), ends.end());
    return join(ends, "/");
  }

  // Strategies are drawn until one is legal; the first balance of all is legal for every scan.
  void choose_strategy() {
    for (int tries = 0; tries < 8; ++tries) {
      const auto scan = swarm_.choose<StateScan>(numbers_, {{"sequential", StateScan::sequential},
                                                            {"doubling", StateScan::recursive_doubling},
                                                            {"all_gather", StateScan::all_gather},
                                                            {"heads", StateScan::heads}});
      const auto balance =
          swarm_.choose<std::string>(numbers_, {{"contiguous", "contiguous"},
                                                {"head_tail", "head_tail"},
                                                {"striped", "striped:3"},
                                                {"per_document", "per_document:contiguous"},
                                                {"each.head_tail", "per_document:head_tail"}});
      // What the rules say, apart from refuse(): heads need whole heads; scans need few chunks.
      const bool legal = scan == StateScan::heads ? key_heads_ % ranks_ == 0
                                                  : !balance.starts_with("striped") || ranks_ == 1;
      if (!legal) continue;
      job_.set_strategy(std::string(name(scan)));
      job_.set_balance(balance);
      return;
    }
    job_.set_strategy("all_gather");
  }

  Numbers& numbers_;
  const Swarm& swarm_;
  proto::Recurrence job_;
  int ranks_ = 1;
  std::int64_t length_ = 1, key_heads_ = 1;
};

}  // namespace

proto::Recurrence draw_recurrence(Numbers& numbers, const Swarm& swarm) {
  return RecurrenceDraw(numbers, swarm).job();
}

}  // namespace cp::sim
