// Steps of small models under layouts: those that are planned, and smaller ones that are proved with data.
#include <algorithm>
#include <string>

#include "shared/base/text.h"
#include "shared/transformer/parallel_layout.h"
#include "sim/fuzz/draw.h"
#include "sim/proof/reference/reference_batch.h"
#include "sim/scenario/model_step.h"
#include "traces/types_proto.h"

namespace cp::sim {
namespace {

class ModelDraw {
 public:
  // With data: a step of training that prove_step() takes, of sizes that few numbers divide.
  ModelDraw(Numbers& numbers, const Swarm& swarm, bool with_data)
      : numbers_(numbers), swarm_(swarm), with_data_(with_data) {}

  proto::ModelStep step() {
    has_documents_ = swarm_.take(numbers_, "documents");
    choose_model();
    choose_layout();
    choose_workload();
    choose_parts();
    step_.set_layout(to_string(layout_));
    return step_;
  }

 private:
  void choose_model() {
    step_.set_hidden(numbers_.of({64, 128}));
    step_.set_layers(numbers_.in(2, 6));
    step_.set_q_heads(numbers_.of({4, 8}));
    step_.set_kv_heads(swarm_.choose<std::int64_t>(numbers_, {{"kv.1", 1}, {"kv.2", 2}, {"kv.4", 4}}));
    step_.set_head_dim(numbers_.of({8, 16}));
    step_.set_intermediate(numbers_.of({64, 128}));
    step_.set_vocab(numbers_.of({64, 128}));
    if (with_data_) choose_odd_sizes();
    step_.set_tied_embeddings(swarm_.take(numbers_, "tied"));
    step_.set_qkv_bias(swarm_.take(numbers_, "bias"));
    step_.set_qk_norm(swarm_.take(numbers_, "qk_norm"));
    step_.set_norms_behind(swarm_.take(numbers_, "norms_behind"));
    if (swarm_.take(numbers_, "latent")) choose_latent();
    if (swarm_.take(numbers_, "window")) step_.set_window(cut());
    if (swarm_.take(numbers_, "kinds")) choose_kinds();
    if (!swarm_.take(numbers_, "experts")) return;
    step_.set_experts(4);
    step_.set_top_k(numbers_.in(1, 2));
    step_.set_expert_intermediate(with_data_ ? numbers_.of({6, 8}) : 64);
    if (swarm_.take(numbers_, "shared_expert"))
      step_.set_shared_expert(with_data_ ? numbers_.of({8, 12}) : numbers_.of({32, 96}));
    // Some layers without, at the beginning or in turn.
    if (step_.kinds_size() > 0 && swarm_.take(numbers_, "dense_layers"))
      step_.mutable_kinds(0)->set_dense(true);
  }

  void choose_odd_sizes() {
    step_.set_hidden(numbers_.of({8, 12, 16, 20}));
    step_.set_layers(numbers_.in(1, 4));
    step_.set_head_dim(numbers_.of({2, 4, 6, 7}));
    step_.set_intermediate(numbers_.of({8, 12, 22}));
    step_.set_vocab(numbers_.of({11, 16, 29}));
  }

  void choose_latent() {
    step_.set_kv_heads(step_.q_heads()), step_.clear_qkv_bias(), step_.clear_qk_norm();
    step_.set_latent_kv_rank(numbers_.of({8, 24}));
    step_.set_latent_q_rank(numbers_.of({0, 16, 40}));
    step_.set_latent_rope_dim(numbers_.of({2, 4, 8}));
    step_.set_latent_v_head_dim(numbers_.of({4, 8, 24}));
    if (with_data_) step_.set_head_dim(step_.latent_rope_dim() + numbers_.in(1, 4));
  }

  // The length of a window or a chunk.
  std::int64_t cut() { return numbers_.in(1, with_data_ ? 12 : 64); }

  void choose_kinds() {
    for (std::int64_t kind = numbers_.in(1, 3); kind > 0; --kind) {
      auto& own = *step_.add_kinds();
      if (numbers_.one_in(2)) own.set_window(cut());
      if (numbers_.one_in(3)) own.set_chunk(cut());
    }
  }

  // Last, so that what a seed drew before them stays.
  void choose_parts() {
    choose_window_core();
    const bool decodes = step_.phase() == proto::PlanLayouts::decode;
    if (step_.latent_kv_rank() > 0 && layout_.cp > 1 && !decodes && swarm_.take(numbers_, "keys"))
      layout_.keys = Strategy::Keys::latent;
    if (step_.norms_behind() && swarm_.take(numbers_, "no_norms_before")) step_.set_no_norms_before(true);
    if (swarm_.take(numbers_, "ungated_mlp")) step_.set_ungated_mlp(true);
    if (step_.latent_kv_rank() == 0 && swarm_.take(numbers_, "gated_attention"))
      step_.set_gated_attention(true);
    const bool training = step_.phase() == proto::PlanLayouts::training;
    if (training && step_.layers() > 1 && swarm_.take(numbers_, "recurrence")) choose_recurrence();
    choose_one_part();
    // Of what attention computes.
    if (step_.qk_norm() && swarm_.take(numbers_, "qk_norm_of_all_heads"))
      step_.set_qk_norm_of_all_heads(true);
    if (step_.latent_kv_rank() == 0 && swarm_.take(numbers_, "rotary_share"))
      step_.set_rotary_share(numbers_.of({0.5, 0.25, 0.0}));
    if (swarm_.take(numbers_, "sinks")) step_.set_sinks(true);
    if (swarm_.take(numbers_, "softcap")) step_.set_softcap(numbers_.of({0.5, 50.0}));
    if (!training && swarm_.take(numbers_, "recurrence")) choose_recurrence();
    if (step_.layers() > 1 && swarm_.take(numbers_, "convolution")) choose_convolution();
    if (training) choose_own_balances();
    if (training && layout_.bucket == 1 && swarm_.take(numbers_, "predictions"))
      step_.set_prediction_layers(numbers_.in(1, 3));
    choose_numerics();
    choose_frequencies();
    choose_blocks_and_norms();
  }

  // Where all layers have attention and an MLP, on rows that are normalized before them alone.
  void choose_blocks_and_norms() {
    const auto has_both = [](const auto& kind) { return attends(kind) && !kind.no_mlp(); };
    const bool fits = step_.latent_kv_rank() == 0 && !step_.norms_behind() &&
                      std::all_of(step_.kinds().begin(), step_.kinds().end(), has_both);
    if (fits && swarm_.take(numbers_, "parallel_blocks")) step_.set_parallel_blocks(true);
    const bool others = step_.qk_norm_of_all_heads() || step_.qk_norm_behind_rotary();
    if (!others && swarm_.take(numbers_, "norm_centered")) step_.set_norm_centered(true);
    if (swarm_.take(numbers_, "logit_scale")) step_.set_logit_scale(numbers_.of({0.25, 2.0}));
  }

  // Biases, positions and what an activation and a router's weights do. Biases of experts are split by tp, of
  // which all sizes of the model are multiples.
  void choose_numerics() {
    if (step_.latent_kv_rank() == 0) {
      if (swarm_.take(numbers_, "out_bias")) step_.set_out_bias(true);
      const bool of_heads = step_.qk_norm() && !step_.qk_norm_of_all_heads();
      if (of_heads && swarm_.take(numbers_, "behind_rotary")) step_.set_qk_norm_behind_rotary(true);
      if (swarm_.take(numbers_, "no_rotary")) {
        for (auto& kind : *step_.mutable_kinds()) {
          if (attends(kind)) kind.set_no_rotary(numbers_.one_in(2));
        }
        if (numbers_.one_in(2)) step_.set_temperature(0.5);
      }
    }
    if (swarm_.take(numbers_, "activation_limit")) step_.set_activation_limit(numbers_.of({0.5, 1.0}));
    if (step_.experts() == 0) return;
    if (step_.shared_expert() > 0 && swarm_.take(numbers_, "shared_gate")) step_.set_shared_gate(true);
    if (swarm_.take(numbers_, "expert_biases")) {
      step_.set_expert_biases(true);
    } else if (swarm_.take(numbers_, "expert_inputs")) {
      step_.set_weighs_expert_inputs(true);
    }
    if (swarm_.take(numbers_, "router_groups")) step_.set_router_groups(numbers_.in(1, 2));
    if (swarm_.take(numbers_, "corrects_scores")) {
      step_.set_corrects_scores(true);
      step_.set_moves_corrections(numbers_.one_in(2));
    }
  }

  // Of rotary positions, and how large scores are.
  void choose_frequencies() {
    if (swarm_.take(numbers_, "rotary_scaling"))
      step_.set_rotary_scaling(numbers_.of<std::string>({"linear", "llama3", "yarn"}));
    const auto has_window = [](const auto& kind) { return kind.has_window(); };
    const bool windows = step_.kinds().empty()
                             ? step_.has_window()
                             : std::any_of(step_.kinds().begin(), step_.kinds().end(), has_window);
    if (windows && swarm_.take(numbers_, "window_theta")) step_.set_window_theta(100);
    if (swarm_.take(numbers_, "score_scale")) step_.set_score_scale(numbers_.of({0.5, 1.5}));
  }

  // Where a window or a chunk cuts.
  bool has_cut_layers() const {
    const auto cuts = [&](std::int64_t length) { return length > 0 && length < step_.seq_len(); };
    bool any = step_.kinds_size() == 0 && cuts(step_.window());
    for (const auto& kind : step_.kinds()) any = any || cuts(kind.window()) || cuts(kind.chunk());
    return any;
  }

  // Of the two balances between whose homes rows go.
  void choose_own_balances() {
    const Balance head_tail{Balance::Kind::head_tail}, contiguous{}, &of_all = layout_.strategy.balance;
    if (layout_.cp == layout_.strategy.ulysses_degree || (of_all != head_tail && of_all != contiguous))
      return;
    const Balance other = of_all == head_tail ? contiguous : head_tail;
    if (has_cut_layers() && swarm_.take(numbers_, "window_balance")) layout_.window_balance = other;
    if (step_.recurrence_value_heads() > 0 && swarm_.take(numbers_, "scan_balance"))
      layout_.scan_balance = other;
  }

  void choose_one_part() {
    if (step_.kinds_size() < 2 || !swarm_.take(numbers_, "one_part")) return;
    // The first kind stays as it is: a model attends somewhere, and has experts somewhere if it has any.
    for (int kind = 1; kind < step_.kinds_size(); ++kind) {
      auto& own = *step_.mutable_kinds(kind);
      if (numbers_.one_in(2)) {
        own.set_no_mlp(true), own.clear_dense();
      } else if (!own.recurrence() && !own.convolution()) {
        own.set_no_mixer(true), own.clear_window(), own.clear_chunk();
      }
    }
    if (step_.experts() > 0 && step_.kinds(0).dense()) step_.mutable_kinds(0)->clear_dense();
  }

  // Where a window or a chunk cuts, and it is no strategy that all layers have.
  void choose_window_core() {
    const bool takes_cores = layout_.cp > layout_.strategy.ulysses_degree &&
                             layout_.strategy.core != Core::need_only &&
                             layout_.strategy.balance.kind != Balance::Kind::striped &&
                             layout_.strategy.balance.kind != Balance::Kind::cost;
    if (layout_.cp > 1 && has_cut_layers() && takes_cores && swarm_.take(numbers_, "window_core"))
      layout_.window_core = Core::need_only;
  }

  void choose_recurrence() {
    const std::int64_t key_heads = numbers_.of({4, 8});
    step_.set_recurrence_key_heads(key_heads);
    step_.set_recurrence_value_heads(key_heads * numbers_.in(1, 2));
    step_.set_recurrence_key_dim(numbers_.of({4, 8}));
    step_.set_recurrence_value_dim(with_data_ ? numbers_.of({3, 5}) : numbers_.of({4, 16}));
    step_.set_recurrence_convolution(numbers_.in(1, 4));
    step_.set_recurrence_decay(numbers_.one_in(2));
    // The second kind, since there are two layers or more.
    while (step_.kinds_size() < 2) step_.add_kinds();
    step_.mutable_kinds(1)->Clear(), step_.mutable_kinds(1)->set_recurrence(true);
    if (layout_.cp == 1) return;
    leave_stripes();
    layout_.scan = numbers_.of(state_scans());
    // A written token has nothing to scan.
    const bool scans = step_.phase() != proto::PlanLayouts::decode;
    if (layout_.scan == StateScan::heads ? key_heads / layout_.tp % layout_.cp != 0 : !scans)
      layout_.scan = StateScan::all_gather;
  }

  // In the last kind that a layer is of: where there is a recurrence, in a third one.
  void choose_convolution() {
    step_.set_convolution_taps(numbers_.in(1, 4)), step_.set_convolution_bias(numbers_.one_in(3));
    while (step_.kinds_size() < (step_.recurrence_value_heads() > 0 && step_.layers() > 2 ? 3 : 2))
      step_.add_kinds();
    const auto kinds = std::min<std::int64_t>(step_.kinds_size(), step_.layers());
    auto& last = *step_.mutable_kinds(static_cast<int>(kinds - 1));
    if (last.recurrence()) return step_.clear_convolution_taps(), step_.clear_convolution_bias();
    last.Clear(), last.set_convolution(true);
    if (layout_.cp > 1) leave_stripes();
  }

  // Rows of such a balance, and of one by the mask, are in too many places for what goes along a sequence.
  void leave_stripes() {
    const Balance::Kind kind = layout_.strategy.balance.kind;
    if (kind == Balance::Kind::striped || (kind == Balance::Kind::cost && step_.convolution_taps() > 0))
      layout_.strategy.balance = {Balance::Kind::head_tail};
  }

  static bool attends(const proto::ModelStep::LayerKind& kind) {
    return !kind.recurrence() && !kind.convolution() && !kind.no_mixer();
  }

  void choose_layout() {
    layout_.dp_replicate = numbers_.of({1, 1, 2});
    layout_.dp_shard = numbers_.of({1, 2, 4});
    layout_.tp = numbers_.of({1, 1, 2, 4});
    layout_.cp = swarm_.choose<int>(numbers_, {{"cp.1", 1}, {"cp.2", 2}, {"cp.3", 3}, {"cp.4", 4}});
    if (swarm_.take(numbers_, "pp")) {
      layout_.pp = numbers_.of({2, 2, 3, 4});
      if (numbers_.one_in(4)) layout_.virtual_stages = 2;
    }
    if (step_.experts() > 0) layout_.ep = numbers_.of({1, 2, 4});
    layout_.micro_batch = numbers_.of({1, 2});
    layout_.loss_chunks = numbers_.of({1, 1, 2, 3});
    if (swarm_.take(numbers_, "whole_rows")) layout_.sequence_parallel = layout_.tp == 1;
    if (step_.experts() == 0 && swarm_.take(numbers_, "mlp_chunks"))
      layout_.mlp_chunks = numbers_.of({2, 3, 4});
    layout_.host_activations = swarm_.take(numbers_, "host_activations");
    layout_.order = numbers_.of(axis_orders());
    if (layout_.cp > 1 && numbers_.one_in(2)) layout_.sharding = ShardingGroup::dp_shard;
    if (layout_.sharding_size() > 1 && swarm_.take(numbers_, "zero"))
      layout_.zero = layout_.pp > 1 ? 1 : numbers_.of({1, 2, 3});
    if (layout_.sharding_size() > 1 && layout_.zero_stage() == 3) {
      if (swarm_.take(numbers_, "reshard"))
        layout_.reshard = layout_.sharding_size() % 4 == 0 ? numbers_.of({1, 2}) : 1;
      layout_.sync_once = swarm_.take(numbers_, "sync");
      if (layout_.reshard != 1 && swarm_.take(numbers_, "prefetch"))
        layout_.prefetch = numbers_.of({0, 2, 3});
      if (swarm_.take(numbers_, "bucket")) layout_.bucket = numbers_.of({2, 3, 4});
      if (swarm_.take(numbers_, "threshold")) layout_.threshold = numbers_.of({17, 200, 3000, 20000});
    }
    layout_.recompute =
        swarm_.choose<Recompute>(numbers_, {{"recompute.none", Recompute{}},
                                            {"recompute.selective", {Recompute::Kind::selective, 1}},
                                            {"recompute.full", {Recompute::Kind::full, 1}},
                                            {"recompute.2", {Recompute::Kind::every, 2}},
                                            {"recompute.3", {Recompute::Kind::every, 3}}});
    if (layout_.cp == 1) return;
    AttentionProblem problem;
    problem.q_len = problem.kv_len = 64, problem.q_heads = step_.q_heads() / layout_.tp;
    if (has_documents_) problem.cu_seqlens = {0, 20, 64};  // any: some balances are of documents alone
    layout_.strategy = numbers_.of(standard_strategies(problem, layout_.cp));
  }

  void choose_phase() {
    if (with_data_) return step_.set_phase(proto::PlanLayouts::training);
    step_.set_phase(
        swarm_.choose<proto::PlanLayouts::Phase>(numbers_, {{"training", proto::PlanLayouts::training},
                                                            {"training.again", proto::PlanLayouts::training},
                                                            {"prefill", proto::PlanLayouts::prefill},
                                                            {"decode", proto::PlanLayouts::decode}}));
  }

  void choose_workload() {
    choose_phase();
    step_.set_seq_len(swarm_.choose<std::int64_t>(
        numbers_,
        {{"even", 96 * numbers_.in(1, 2)}, {"odd", numbers_.in(1, 100)}, {"few", numbers_.in(1, 8)}}));
    if (step_.phase() != proto::PlanLayouts::training) {
      layout_.recompute = {};
      layout_.dp_replicate = layout_.dp_shard = layout_.loss_chunks = 1;
      layout_.ep = layout_.virtual_stages = layout_.mlp_chunks = 1;
      layout_.zero = 0, layout_.host_activations = false;
      static_cast<ShardChoices&>(layout_) = {};
      step_.set_cached(step_.phase() == proto::PlanLayouts::decode ? step_.seq_len() - 1
                                                                   : numbers_.in(0, step_.seq_len() - 1));
      if (step_.phase() == proto::PlanLayouts::decode) step_.set_new_tokens(1);
      step_.set_kv_dtype(to_proto(numbers_.of({DType::bf16, DType::f16, DType::f32})));
    }
    if (with_data_) step_.set_seq_len(numbers_.in(2, 24));  // of one token none is predicted
    step_.set_global_batch(layout_.dp() * layout_.micro_batch * micro_batches());
    if (has_documents_ && step_.phase() == proto::PlanLayouts::training) choose_documents();
    step_.set_dtype(to_proto(numbers_.of({DType::bf16, DType::bf16, DType::f32})));
    step_.set_gradient_dtype(to_proto(numbers_.of({DType::f32, DType::bf16})));
    step_.set_optimizer(numbers_.of<std::string>({"adamw", "adamw_16", "adamw:offload", "sgd"}));
    step_.set_cluster("dgx-h100");
    if (with_data_) choose_numbers();
  }

  // The same in all sequences or, of steps with data, some in each.
  void choose_documents() {
    const bool of_each = with_data_ && swarm_.take(numbers_, "documents.of_sequence");
    // With data one at least has two tokens, so that there is a label.
    const std::int64_t most = std::max<std::int64_t>(1, step_.seq_len() - (with_data_ ? 1 : 0));
    std::vector<std::string> lists;
    for (std::int64_t sequence = 0; sequence < (of_each ? step_.global_batch() : 1); ++sequence) {
      const std::int64_t documents = std::min(most, numbers_.in(of_each ? 1 : 2, 5));
      lists.push_back(join(draw_documents(step_.seq_len(), documents, numbers_.next()), "/"));
    }
    step_.set_documents(join(lists, ";"));
  }

  // A router's choice between 16-bit scores hangs on roundings.
  void choose_numbers() {
    const bool in_16_bits = step_.experts() == 0 && swarm_.take(numbers_, "bf16");
    step_.set_dtype(to_proto(in_16_bits ? DType::bf16 : DType::f32));
    if (step_.experts() > 0) step_.clear_gradient_dtype();
    if (step_.experts() > 0 && swarm_.take(numbers_, "drops"))
      step_.set_expert_imbalance(numbers_.of({1.0, 1.25, 2.0}));
    if (swarm_.take(numbers_, "dropout")) step_.set_attention_dropout(numbers_.of({0.1, 0.5}));
    if (numbers_.one_in(6)) step_.set_optimizer("sgd_momentum");
    step_.clear_cluster();
  }

  std::int64_t micro_batches() {
    if (with_data_) return layout_.virtual_stages > 1 ? layout_.pp : numbers_.in(1, 3);
    if (layout_.pp == 1 || step_.phase() != proto::PlanLayouts::training) return 1;
    return layout_.virtual_stages > 1 ? layout_.pp * numbers_.in(1, 2) : numbers_.in(1, 6);
  }

  Numbers& numbers_;
  const Swarm& swarm_;
  const bool with_data_;
  bool has_documents_ = false;
  proto::ModelStep step_;
  ParallelLayout layout_;
};

// How often a step is drawn until the rules of layouts do not refuse it; after that the plainest layout is
// taken. Chosen: drawing is cheap next to judging.
constexpr int kTriesOfStep = 50;

proto::ModelStep draw_step(Numbers& numbers, const Swarm& swarm, bool with_data, int most_ranks) {
  proto::ModelStep step;
  for (int i = 0; i < kTriesOfStep; ++i) {
    step = ModelDraw(numbers, swarm, with_data).step();
    const StepRequest request = make_step_request(step);
    if (request.layout.world() <= most_ranks && !refuse(request.model, request.workload, request.layout))
      return step;
  }
  step.set_layout("");
  step.set_global_batch(1);
  step.set_documents(step.documents().substr(0, step.documents().find(';')));  // those of the one sequence
  return step;
}

}  // namespace

proto::ModelStep draw_model(Numbers& numbers, const Swarm& swarm) {
  return draw_step(numbers, swarm, false, kMostModelRanks);
}

proto::Proof draw_proof(Numbers& numbers, const Swarm& swarm) {
  // On more ranks a case takes longer, and shows little more.
  constexpr int kUsualRanks = 8;
  proto::Proof proof;
  *proof.mutable_step() = draw_step(numbers, swarm, true, numbers.one_in(8) ? kMostProvedRanks : kUsualRanks);
  proof.set_seed(numbers.next() % 1000);
  const std::int64_t sequences = proof.step().global_batch();
  if (sequences > 1 && swarm.take(numbers, "without_label"))
    proof.set_without_label(numbers.in(1, sequences - 1));
  // Of so many labels one is left, but once in 2^16 times: a batch without any has no mean.
  constexpr std::int64_t kLeastLabels = 16;
  std::int64_t documents = 1;  // of the sequence that has most
  for (const std::string_view list : split(proof.step().documents(), ';'))
    documents = std::max<std::int64_t>(documents, std::ssize(split(list, '/')) - 1);
  const std::int64_t labels = (sequences - proof.without_label()) * (proof.step().seq_len() - documents);
  if (labels >= kLeastLabels && swarm.take(numbers, "ignored")) proof.set_ignored(numbers.of({0.1, 0.5}));
  return proof;
}

}  // namespace cp::sim
