// Micro-batches with data, on the simulated fabric: the gradients that a plan leaves are those of the losses
// that it hands out, and layouts that share parameters agree.
#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "shared/base/index.h"
#include "shared/base/text.h"
#include "shared/kernels/host_kernels.h"
#include "shared/plan/bindings.h"
#include "shared/plan/execute.h"
#include "shared/transformer/rotary_table.h"
#include "shared/transformer/update_writer.h"
#include "sim/fabric/fabric.h"
#include "tests/transformer/step_requests.h"

namespace cp::testing {
namespace {

using Values = std::vector<double>;

// A unit of parameters as a rank has it.
struct OwnUnit {
  ShardedUnit sharded;
  std::int64_t index = 0;      // of its shard
  std::vector<Weight> copied;  // elements of each piece that all tp ranks have
  bool is_copied(std::int64_t position) const {
    return std::any_of(copied.begin(), copied.end(), [&](const Weight& weight) {
      return position >= weight.begin && position < weight.end();
    });
  }
};

// The plans of a micro-batch, and what the caller binds to them.
class StepWithData {
 public:
  explicit StepWithData(const StepRequest& request)
      : request_(request), plans_(plans_of_all_ranks(request, StepPart::micro_batch)) {
    for (const Plan& plan : plans_) {
      MixerPlanCache cache;
      const StepContext context(request_, StepPart::micro_batch, 0, plan.self, cache);
      RankWithData& rank = ranks_.emplace_back();
      rank.first = context.groups.tp() == 0;
      rank.tp = context.groups.tp(), rank.tp_group = context.groups.tp_group();
      const StepUnits units(context);
      for (const StepUnit* unit : units.present()) {
        OwnUnit own{unit->sharded, 0, {}};
        for (const LayerParts parts : kLayerParts) {
          if (unit != &units.layers[parts]) continue;
          const LayerWeights& layer = context.layer[parts];
          own.copied.insert(own.copied.end(), layer.replicated.begin(), layer.replicated.end());
          if (request_.model.kv_heads >= request_.layout.tp) continue;
          // The one kv head.
          const std::int64_t q_width = context.sizes.q_width, kv_width = context.sizes.kv_width;
          own.copied.push_back(layer.qkv.part(q_width, 2 * kv_width));
          if (request_.model.qkv_bias)
            own.copied.push_back({layer.qkv_bias.begin + q_width, 1, 2 * kv_width});
          if (request_.model.qk_norm_of_all_heads) own.copied.push_back(layer.k_norm);
        }
        if (unit == &units.head) own.copied.push_back(context.head.norm);
        if (unit == &units.prediction) own.copied.push_back({0, 1, context.prediction.numel});
        while (own.sharded.ranks[idx(own.index)] != plan.self) ++own.index;
        rank.units.emplace(own.sharded.name, own);
      }
      bind(plan, context, rank);
    }
  }

  std::vector<std::string> units() const {
    std::vector<std::string> names;
    for (const auto& [name, unit] : ranks_.front().units) names.push_back(name);
    return names;
  }

  // The sum of all losses, of parameters that lie `step` along the gradients of the last run but one that had
  // no step, of the pieces' elements of one unit that are the part-th of kParts.
  static constexpr std::int64_t kParts = 3;
  double run(double step = 0, const std::string& unit_name = "", std::int64_t part = 0) {
    for (RankWithData& rank : ranks_) {
      for (const auto& [name, unit] : rank.units) {
        Values values = rank.parameters.at(name);
        if (name == unit_name) {
          for (std::size_t i = 0; i < values.size(); ++i)
            if (is_in(unit, i, part)) values[i] += step * rank.gradients.at(name)[i];
        }
        rank.data.at("parameters/" + name) = encode(DType::f32, values);
        std::fill(rank.data.at("gradients/" + name).begin(), rank.data.at("gradients/" + name).end(),
                  std::byte{0});
      }
    }
    execute_all(plans_);
    double sum = 0;
    for (RankWithData& rank : ranks_) {
      for (const auto& [name, data] : rank.data) {
        if (!rank.first || !name.starts_with("working/losses")) continue;
        for (const double loss : decode(DType::f32, data)) sum += loss;
      }
      if (step != 0) continue;
      for (const auto& [name, unit] : rank.units)
        rank.gradients[name] = decode(DType::f32, rank.data.at("gradients/" + name));
    }
    if (step == 0) add_up_replicated();
    return sum;
  }

  // Updates once at this rate. Returns by how much an element of any rank differs at most from the one before
  // without the rate times this share of its gradient.
  double update(double rate, double share) {
    const std::vector<Plan> plans = plans_of_all_ranks(request_, StepPart::update);
    for (std::size_t r = 0; r < plans.size(); ++r) {
      for (const Buffer& buffer : plans[r].buffers) {
        if (buffer.kind != BufferKind::temporary)
          ranks_[r].data.try_emplace(buffer.name, idx(buffer.bytes()));
      }
      ranks_[r].data.at("working/schedule") = encode(DType::f32, {rate, 1});
    }
    execute_all(plans);
    double most = 0;
    for (const RankWithData& rank : ranks_) {
      for (const auto& [name, unit] : rank.units) {
        const Values after = decode(DType::f32, rank.data.at("parameters/" + name)),
                     &before = rank.parameters.at(name), &gradients = rank.gradients.at(name);
        for (std::size_t i = 0; i < after.size(); ++i) {
          if (position(unit, i) < unit.sharded.numel)
            most = std::max(most, std::abs(after[i] - (before[i] - rate * share * gradients[i])));
        }
      }
    }
    return most;
  }

  // The sum of the squares of these elements' gradients; what tp ranks hold alike counts once.
  double squares(const std::string& unit_name, std::int64_t part) const {
    double sum = 0;
    for (const RankWithData& rank : ranks_) {
      const OwnUnit& unit = rank.units.at(unit_name);
      const Values& gradients = rank.gradients.at(unit_name);
      for (std::size_t i = 0; i < gradients.size(); ++i) {
        if (!is_in(unit, i, part)) continue;
        const bool copied = unit.is_copied(position(unit, i));
        sum += gradients[i] * gradients[i] / (copied ? static_cast<double>(request_.layout.tp) : 1);
      }
    }
    return sum;
  }

 private:
  void execute_all(const std::vector<Plan>& plans) {
    sim::Fabric fabric(static_cast<int>(plans.size()));
    fabric.run([&](Rank self, Device& device) {
      const Plan& plan = plans[idx(self)];
      Bindings bindings;
      for (std::size_t id = 0; id < plan.buffers.size(); ++id) {
        const auto found = ranks_[idx(self)].data.find(plan.buffers[id].name);
        if (found == ranks_[idx(self)].data.end()) continue;
        bindings.push_back({static_cast<BufferId>(id), found->second.data(), std::ssize(found->second)});
      }
      execute(plan, device, bindings);
    });
  }

  // Where the backward pass adds to whole gradients, the update adds them up over the tp ranks.
  void add_up_replicated() {
    const auto own = [](const RankWithData& rank, const std::string& name) {
      return decode(DType::f32, rank.data.at("gradients/" + name));
    };
    for (RankWithData& rank : ranks_) {
      for (const auto& [name, unit] : rank.units) {
        if (!unit.sharded.adds_gradients()) continue;
        for (const Rank other : rank.tp_group) {
          if (ranks_[idx(other)].tp == rank.tp) continue;
          const Values theirs = own(ranks_[idx(other)], name);
          for (std::size_t i = 0; i < theirs.size(); ++i)
            rank.gradients[name][i] += unit.is_copied(position(unit, i)) ? theirs[i] : 0;
        }
      }
    }
  }

  struct RankWithData {
    bool first = false;  // of its tp ranks
    int tp = 0;
    std::vector<Rank> tp_group;
    std::map<std::string, OwnUnit> units;
    std::map<std::string, std::vector<std::byte>> data;  // by the name of the buffer
    std::map<std::string, Values> parameters, gradients;
  };

  // Of the i-th element that the rank has: its position in its piece.
  static std::int64_t position(const OwnUnit& unit, std::size_t i) {
    const std::int64_t shard = unit.sharded.shard_numel();
    return unit.index * shard + static_cast<std::int64_t>(i) % shard;
  }
  static bool is_in(const OwnUnit& unit, std::size_t i, std::int64_t part) {
    const std::int64_t at = position(unit, i);
    return at < unit.sharded.numel && at * kParts / unit.sharded.numel == part;
  }

  // Alike on all ranks that hold the element, whatever the layout of data parallelism.
  static double parameter(const OwnUnit& unit, std::size_t i, int tp) {
    const std::int64_t at = position(unit, i),
                       piece = static_cast<std::int64_t>(i) / unit.sharded.shard_numel();
    if (at >= unit.sharded.numel) return 0;
    std::seed_seq seed{static_cast<std::int64_t>(std::hash<std::string>()(unit.sharded.name) % 1000), piece,
                       at, unit.is_copied(at) ? std::int64_t{0} : std::int64_t{tp}};
    std::minstd_rand random(seed);
    return 0.25 * std::normal_distribution<double>()(random);
  }

  void bind(const Plan& plan, const StepContext& context, RankWithData& rank) {
    const Workload& workload = request_.workload;
    for (const Buffer& buffer : plan.buffers) {
      if (buffer.kind == BufferKind::temporary) continue;
      rank.data[buffer.name] = std::vector<std::byte>(idx(buffer.bytes()));
    }
    for (const auto& [name, unit] : rank.units) {
      Values& values = rank.parameters[name];
      values.resize(idx(unit.sharded.pieces * unit.sharded.shard_numel()));
      for (std::size_t i = 0; i < values.size(); ++i) values[i] = parameter(unit, i, rank.tp);
    }
    const auto put = [&](const std::string& name, DType dtype, const Values& values) {
      if (rank.data.contains(name)) rank.data.at(name) = encode(dtype, values);
    };
    const std::int64_t replica =
        context.groups.dp_replicate() * request_.layout.dp_shard + context.groups.dp_shard();
    for (std::int64_t ahead = 0; ahead <= request_.model.prediction_layers; ++ahead) {
      Values tokens, targets;
      for (std::int64_t b = 0; b < request_.layout.micro_batch; ++b) {
        const std::int64_t sequence = replica * request_.layout.micro_batch + b;
        const auto token = [&](std::int64_t at) {
          return static_cast<double>((7 * sequence + at * at) % request_.model.vocab);
        };
        for (std::int64_t row = 0; row < size(context.positions()); ++row) {
          const std::int64_t at = to_global(context.positions(), row) + ahead;
          const bool ignored = at + 1 >= workload.seq_len || at % 5 == 3;
          tokens.push_back(token(at)), targets.push_back(ignored ? -100 : token(at + 1));
        }
      }
      const std::string behind = ahead == 0 ? "" : str(" ", ahead, " ahead");
      put("working/tokens" + behind, DType::i32, tokens),
          put("working/targets" + behind, DType::i32, targets);
      put("working/loss_weight" + behind, DType::f32, {1});
    }
    const std::vector<float> table = rotary_table(request_.model, workload.seq_len);
    put("activations/positions", DType::f32, Values(table.begin(), table.end()));
  }

  StepRequest request_;
  std::vector<Plan> plans_;
  std::vector<RankWithData> ranks_;
};

StepRequest request_of(const Transformer& model, std::string_view layout) {
  StepRequest request{model, {}, parse_parallel_layout(layout)};
  request.workload.seq_len = 12, request.workload.dtype = DType::f32;
  request.workload.global_batch = 2;
  request.workload.expert_imbalance = 1.5;
  return request;
}

// Along the gradients of a part of a unit, the loss rises by the sum of their squares.
void expect_gradients(const StepRequest& request) {
  std::ostringstream what;
  showValue(request, what);
  SCOPED_TRACE(what.str());
  StepWithData step(request);
  const double loss = step.run();
  EXPECT_GT(loss, 1);
  for (const std::string& unit : step.units()) {
    for (std::int64_t part = 0; part < StepWithData::kParts; ++part) {
      const double squares = step.squares(unit, part);
      ASSERT_TRUE(std::isfinite(squares));
      if (squares < 1e-6) continue;
      // Of this length the loss rises by some hundred times its rounding, which is about 1e-5, and what is
      // curved in it (choices of experts that change, too) is below a hundredth.
      const double length = 0.003 / std::sqrt(squares);
      const double rise = (step.run(length, unit, part) - step.run(-length, unit, part)) / (2 * length);
      EXPECT_NEAR(rise / squares, 1, 0.01 + 1e-3 / std::sqrt(squares)) << unit << ", part " << part;
    }
  }
}

TEST(StepGradients, AreThoseOfTheLosses) {
  Transformer model = small_model();
  model.layers = 2;
  for (const char* layout :
       {"micro_batch=2", "tp=2,micro_batch=2", "cp=2,strategy=ring,micro_batch=2,recompute=full",
        "cp=2,tp=2,strategy=ring,balance=head_tail,micro_batch=2,recompute=selective"})
    expect_gradients(request_of(model, layout));
}

// Layers, one of each kind, that add what the first test lacks.
TEST(StepGradients, OfOtherLayersToo) {
  const auto with = [](auto change) {
    Transformer model = small_model();
    model.layers = 2;
    change(model);
    return model;
  };
  const Transformer biased = with([](Transformer& model) {
    model.qkv_bias = model.tied_embeddings = model.norms_behind = model.qk_norm = true;
    model.numerics.norm_unit_offset = true, model.numerics.activation = ActivationFunction::gelu_tanh;
    model.numerics.embedding_scale = 2, model.numerics.logit_softcap = 3;
  });
  const Transformer over_heads = with([](Transformer& model) {
    model.qk_norm = model.qk_norm_of_all_heads = model.norms_behind = model.gated_attention = true;
    model.norms_before = model.gated_mlp = false, model.kv_heads = 4;
    model.numerics.activation = ActivationFunction::relu2;
  });
  const Transformer latent = with([](Transformer& model) {
    model.latent = Latent{16, 12, 4, 6};
    model.kv_heads = model.q_heads, model.head_dim = 10;
    model.numerics.interleaved_rotary = true;
    model.numerics.score_scale = 1.5;
  });
  // Of an odd number of rotated columns one stays as it is.
  const Transformer odd_heads = with([](Transformer& model) { model.head_dim = 5; });
  Transformer odd_latent = latent;
  odd_latent.latent->rope_dim = 3;
  const Transformer experts = with([](Transformer& model) { model.experts = Experts{4, 2, 24, 16}; });
  const Transformer groups = with([](Transformer& model) {
    model.experts = Experts{8, 2, 24, 0};
    model.numerics.router = {true, 4, 2, true, 1.5, 1};
  });
  const Transformer llama4 = with([](Transformer& model) {
    model.experts = Experts{4, 1, 24, 16};
    model.qk_norm = model.qk_norm_behind_rotary = true;
    model.numerics.router.sigmoid = model.numerics.weighs_expert_inputs = true;
    model.numerics.router.normalized = false, model.numerics.temperature = {0.5, 3};
    set_layers(model, {{}, {{}, {}, false, Mixer::attention, true, false}});
  });
  const Transformer parallel = with([](Transformer& model) {
    model.parallel_blocks = model.tied_embeddings = model.out_bias = true;
    model.numerics.norm_centered = true, model.numerics.logit_scale = 0.5;
  });
  const Transformer parallel_experts = with([](Transformer& model) {
    model.parallel_blocks = model.qk_norm = true, model.experts = Experts{4, 2, 24, 16};
  });
  const Transformer gpt_oss = with([](Transformer& model) {
    model.experts = Experts{4, 2, 24, 0};
    model.experts->biases = model.qkv_bias = model.out_bias = true;
    model.numerics.activation = ActivationFunction::quick_gelu;
    model.numerics.activation_limit = 0.75, model.numerics.up_offset = 1;
  });
  const Transformer gated_shared = with([](Transformer& model) {
    model.experts = Experts{4, 2, 24, 16, true};
  });
  for (const auto& [model, layout] :
       std::vector<std::pair<Transformer, const char*>>{{biased, "micro_batch=2"},
                                                        {parallel, "micro_batch=2"},
                                                        {parallel, "tp=2,cp=2,strategy=ring,micro_batch=2"},
                                                        {parallel_experts, "micro_batch=2,recompute=full"},
                                                        {llama4, "micro_batch=2"},
                                                        {llama4, "tp=2,micro_batch=2"},
                                                        {gpt_oss, "micro_batch=2"},
                                                        {gpt_oss, "tp=2,micro_batch=2,recompute=selective"},
                                                        {gpt_oss, "dp_shard=2,ep=2"},
                                                        {gated_shared, "tp=2,micro_batch=2,recompute=full"},
                                                        {biased, "tp=2,micro_batch=2"},
                                                        {over_heads, "micro_batch=2"},
                                                        {over_heads, "tp=2,micro_batch=2"},
                                                        {latent, "micro_batch=2"},
                                                        {latent, "tp=2,micro_batch=2"},
                                                        {odd_heads, "micro_batch=2"},
                                                        {odd_latent, "micro_batch=2"},
                                                        {experts, "micro_batch=2"},
                                                        {experts, "tp=2,micro_batch=2"},
                                                        {experts, "dp_shard=2,ep=2"},
                                                        {groups, "dp_shard=2,ep=2"}})
    expect_gradients(request_of(model, layout));
}

// The norm that clipping divides by is that of all gradients, of which what tp ranks hold alike counts once.
TEST(StepUpdate, ClipsByTheNormOfAllGradients) {
  Transformer model = small_model();
  model.layers = 2, model.qk_norm = true;
  for (const char* layout :
       {"micro_batch=2", "tp=2,micro_batch=2", "dp_shard=2", "cp=2,tp=2,strategy=ring,micro_batch=2"}) {
    StepRequest request = request_of(model, layout);
    request.workload.optimizer = parse_optimizer("sgd");
    request.workload.optimizer.decay = 0, request.workload.optimizer.max_norm = 0.5;
    StepWithData step(request);
    step.run();
    double squares = 0;
    for (const std::string& unit : step.units()) {
      for (std::int64_t part = 0; part < StepWithData::kParts; ++part) squares += step.squares(unit, part);
    }
    ASSERT_GT(squares, 1) << layout;
    EXPECT_LT(step.update(0.25, 0.5 / std::sqrt(squares)), 1e-5) << layout;
  }
}

// How the sequence is cut, what is computed again and where parameters lie changes no loss.
TEST(StepLosses, AreThoseOfOneDevice) {
  Transformer model = small_model();
  model.layers = 2, model.qk_norm = true;
  const double one = StepWithData(request_of(model, "micro_batch=2")).run();
  for (const char* layout : {"dp_shard=2", "cp=2,strategy=ring,balance=head_tail,micro_batch=2",
                             "cp=3,strategy=ulysses,micro_batch=2,loss_chunks=3",
                             "cp=2,strategy=all_gather,micro_batch=2,recompute=full,mlp_chunks=2"})
    EXPECT_NEAR(StepWithData(request_of(model, layout)).run(), one, 1e-4 * one) << layout;
}

// In 16 bits with f32 shards and gradients; of a mixture of experts, whose weights of choices stay f32.
TEST(StepLosses, InSixteenBitsAreNearThoseOfF32) {
  Transformer model = small_model();
  model.layers = 2, model.qkv_bias = true, model.experts = Experts{4, 2, 24, 16};
  StepRequest request = request_of(model, "dp_shard=2");
  const double f32 = StepWithData(request).run();
  for (const DType dtype : {DType::bf16, DType::f16}) {
    request.workload.dtype = dtype;
    StepWithData step(request);
    const double loss = step.run();
    // A hundredth: some roundings of 2^-9 in bf16, in the logits of each row.
    EXPECT_NEAR(loss, f32, 0.01 * f32) << name(dtype);
    EXPECT_NE(loss, f32) << name(dtype);
    for (const std::string& unit : step.units()) EXPECT_TRUE(std::isfinite(step.squares(unit, 0))) << unit;
  }
}

}  // namespace
}  // namespace cp::testing
