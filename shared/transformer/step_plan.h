// Writes the work of a whole model down as plans: what one rank does for a part of a step.
//
// Layers are the iterations of a Repeat; the weights of layer i+1 are gathered while layer i computes (two
// slots). Rows of activations are [batch x rows] x hidden. A rank's rows of the sequence are those that its
// attention strategy gives it at home. Between the tensor-parallel regions a rank has its tp-th part of them,
// padded to the same number on all tp ranks. Where layers have their rows at two homes (window_balance,
// scan_balance), the rows go to the next layer's home behind a layer, and their gradients back before its
// backward pass: one Exchange each, of the rows that change their rank (row_moves.h).
//
// Streams:
//   compute                 products, kernels, attention
//   tp, ep, pp, fsdp        the collectives of these axes
//   fsdp_reduce             gradients that are reduced and scattered, so that they do not hold up the next
//                           gather
//   replicas, norm          in the update, or reduce: sums over replicas, and the norm of the gradients
//   to_host, from_host      copies between the GPU's memory and the host's
//   host                    what the host itself computes
//   comm                    rows of halos, and rows that go from home to home
// Attention has streams of its own, which attention_plan() names.
//
// Groups have the names of their streams, or longer ones:
//   pp_gradients                                          the ranks of pp, in training: gradients of rows,
//     which go beside the rows that come
//   homes                                                 the cp ranks, with the tp ranks that split their
//     rows
//   fsdp_experts, fsdp_experts_reduce, replicas_experts   experts, which are sharded over other ranks
//   fsdp_kept, fsdp_experts_kept                          parameters that are gathered again from fewer ranks
//   replicas_whole, replicas_experts_whole                parameters below the threshold, alone in their unit,
//                                                         and so whole on all that share others
//   tp_kv                                                 tp ranks that hold one kv head
//   tied                                                  the first and the last stage, where both have the
//                                                         embedding's table: it is tied, or prediction layers
//                                                         look rows up in it
//   norm_shards, norm_tp, norm_pp                         the norm of the gradients
// axis_of_group() (group_axis.h) knows all of them.
//
// Prediction layers (model.h) stand behind the last layer, with their backward passes. Their steps are
// written one depth after the other. They are pieces of the units of the layers that they are like; their
// norms and matrices are a unit of their own. Of losses there is one for each depth, working/losses K ahead,
// whose labels and embedded tokens are inputs, working/targets K ahead and working/tokens K ahead.
//
// Parameters. Without pipeline stages, each layer, the experts of each layer, the embedding, and the head
// with the final norm are units of their own (shared/fully_shard/unshard_writer.h). They are gathered when
// they are needed, forward and backward. With zero=1, and with stages, a rank keeps whole parameters in
// `dtype` and whole gradients in `gradient_dtype`; they are gathered and reduced once a step, in the update.
// With zero=2, gradients are reduced and scattered behind each layer. With sync=step whole gradients stay
// beside sharded parameters; with reshard layers, not the ends, keep what was gathered for their backward
// pass. With prefetch other numbers of layers are gathered ahead; with bucket several layers are gathered and
// reduced at once; below the threshold tensors are whole on all ranks. A unit that a rank does not share is
// treated the same way, without the gathers. Products add to whole gradients themselves, in f32. Serving
// keeps whole parameters, whatever the layout shards. Gradients are added to those that the caller hands
// over; these must be zero before the first micro-batch.
//
// What is kept for the backward pass depends on Recompute. It is stacked over the layers that keep it:
//   all           x (the stack has one piece more, for the last layer's output)
//   none          the norms' outputs (one tp rank's rows, which are gathered again backward); rotated q, k
//                 and v, or what attention saved instead; out and lse; x between mixer and MLP; gate and up;
//                 the activation's output. With qk_norm also q and k before it, and
//                 what their norms added up over tp ranks. With latent attention its
//                 rows before their norms and behind; where attention expands the rows, these, rotated, in
//                 place of k and v. With norms behind what
//                 these take; with gated attention the gates, and the output times them. With a recurrence
//                 the halo, what its projection gave, q, k and v behind the convolution, decay and beta, the
//                 states that came in, and the output before and behind its norm. With a convolution B, x,
//                 C and what it gave, side by side, its halo, and both products. With experts also the
//                 router's logits and choice, and the rows and weights that arrived
//   selective     the same without the outputs of the norms, of the activation and of gates
// A prediction layer keeps the same, beside it the rows that it embeds and hands on, and by `none` its two
// normalized inputs. `every` counts the stage's layers and leaves it as it is; and it stays on the GPU.
// With mlp_chunks, nothing that a dense MLP makes on its way is kept.
//
// Row kernels have their rules (row_rules_of.h). The plans of training run on devices that have
// host_target(). Of serving, rotary kernels and short convolutions have shapes only.
//
// Where a router corrects its scores (Experts::corrects_scores), its corrections are f32 on every rank that
// has the layer: parameters/score_correction, [layers of the stage with experts, experts], prediction layers
// behind the others. Only forward passes read them, and those that are computed again.
//
// Where they move (Experts::moves_corrections), forward passes add to gradients/score_correction, as large,
// how many tokens chose each expert. The update adds these loads up over all replicas, and then does what
// DeepSeek-V3's training does (arXiv 2412.19437, section 2.1.2): a correction grows by a rate where the load
// is below the mean, and shrinks by it where it is above. The rate is an input, working/correction_schedule
// [2], with the number of the step behind it. tp ranks have the same rows, and so the same loads.
//
// Where attention drops weights (Workload::attention_dropout), passes read working/seeds [layers of the
// stage, 3] i64, prediction layers behind the others: the seed of the step, the number of the layer in the
// model, prediction layers counting behind the others, and that of the micro-batch's first sequence in the
// global batch.
//
// What the caller puts in, beside parameters, of the rank's rows in their order: working/tokens and
// working/targets [tokens] i32, targets the labels of the rows, -100 for none; working/loss_weight [1] and
// working/schedule [2] (row_operations.h, cross_entropy_backward and optimizer); and
// activations/positions (rotary_table.h). What comes out: working/losses [tokens], the loss of each row; each
// tp rank has all of them. And of the update, or reduce, working/norm [1]: the squared norm of all gradients.
//
// The name of a buffer begins with the memory term that it counts for, as in shared/transformer/memory.h:
// "parameters/...", "master/...", "gradients/...", "optimizer/...", "unsharded/...", "activations/...",
// "working/...", "logits/...", "attention/...", "kv_cache/..."; or with "host/" if it is in host memory
// (shared/plan/host_place.h).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "shared/plan/plan.h"
#include "shared/transformer/mixer_plan_cache.h"
#include "shared/transformer/parallel_layout.h"

namespace cp {

// What routers add to the scores that they choose experts by, and the loads that move it.
inline constexpr std::string_view kScoreCorrection = "score_correction";
inline constexpr std::string_view kScoreCorrectionBuffer = "parameters/score_correction";
inline constexpr std::string_view kLoadsBuffer = "gradients/score_correction";
inline constexpr std::string_view kCorrectionSchedule = "working/correction_schedule";
// What dropout reads.
inline constexpr std::string_view kSeedsBuffer = "working/seeds";

struct UnplacedPlan;

// The parts of a step. Without pipeline stages, a training step is micro_batch, accumulation() times, and
// then update. With stages, it is forward and backward of each stage for each micro-batch, and then update of
// each stage; the transfers between stages are parts of their own, and step_order() (step_order.h) says in
// which order a rank runs all of them. The forward part of the last stage ends with prediction layers, head
// and loss, forward and backward; it hands over working/dx, the gradient of the last layer's output.
//
// Rows come to a stage as the input of its first layer, and leave as the output of its last one, which stands
// behind the inputs in the same stack. In the place of that output its gradient comes back, and the backward
// part turns it into the gradient of the stage's input. Where stacks are in host memory, what comes and
// leaves is copied to and from activations/between stages; and where the stage's first rows are at another
// home than its last ones, their gradient leaves from "working/dx that leaves".
//
// With virtual stages a rank has several, and the norm that clips is over the gradients of all of them:
// reduce of each stage comes before the first update, in the order of the stages. It leaves the gradients
// reduced in their place, and adds their squares to working/norm, which all stages of a rank share; that of
// the last stage adds it up over the ranks.
enum class StepPart : std::uint8_t {
  micro_batch,  // embedding, layers, loss, and back
  forward,      // of one stage
  backward,     // the same
  reduce,       // with virtual stages: reduction among replicas, norm of the gradients
  update,       // the same without virtual stages, and the optimizer
  prefill,  // of one stage: reads the tokens behind `cached`, fills the cache, gives the last token's logits
  decode,   // of one stage: one more token for each request
  // Of training with pipeline stages, what one stage and a neighbour do together; names as in Megatron-LM.
  recv_forward,   // rows come from the stage before
  send_forward,   // and go to the stage behind
  recv_backward,  // gradients of rows come from the stage behind
  send_backward,  // and go to the stage before
};
std::string_view name(StepPart part);
bool is_transfer(StepPart part);
// Whether plans of the part say which rows see which, so that documents of sequences make other ones.
bool sees_documents(StepPart part);

struct StepRequest {
  Transformer model;
  Workload workload;
  ParallelLayout layout;
};

// The plan of one rank. `stage` is one of the pp * virtual_stages stages and must be one that the rank holds.
// Without a cache the call makes one for itself. Where sequences have documents of their own, plans of
// micro_batch, forward and backward are of this micro-batch, whose documents on all replicas are in
// their digest of inputs; else micro-batches have one plan. Throws InvalidInput with the reason of refuse()
// if the layout is not legal.
Plan step_plan(const StepRequest& request, StepPart part, int stage, Rank self,
               MixerPlanCache* cache = nullptr, std::int64_t micro_batch = 0);
// The same of the first micro-batch without places (shared/plan/temporaries.h), for a search, which asks for
// thousands. The request must be legal, and the rank must hold the stage.
UnplacedPlan unplaced_step_plan(const StepRequest& request, StepPart part, int stage, Rank self,
                                MixerPlanCache& cache);
// The plans of all ranks that hold the stage, by ascending rank.
std::vector<Plan> step_plans(const StepRequest& request, StepPart part, int stage,
                             MixerPlanCache* cache = nullptr, std::int64_t micro_batch = 0);

// The first of the sequences of the global batch, which are neighbours, that the rank's replica has in a
// micro-batch.
std::int64_t first_sequence(const StepRequest& request, Rank self, std::int64_t micro_batch);
// The documents of a micro-batch on all replicas, where sequences have documents of their own; else nothing.
// Micro-batches with equal ones have equal plans.
std::vector<std::vector<std::int64_t>> documents_of_micro_batch(const StepRequest& request,
                                                                std::int64_t micro_batch);

// What a rank does to bring the rows of a micro-batch from `home` to the other one, alone
// (homes_of_layers()); the layers of the request's model must have both.
Plan row_move_plan(const StepRequest& request, int home, Rank self);

// The parts that a step of the request has, without transfers between stages; each is listed once.
std::vector<StepPart> parts_of(const StepRequest& request);
// The transfers that a stage has part in, in training.
std::vector<StepPart> transfers_of(const StepRequest& request, int stage);
// The plans of all ranks of the world for one part of a step. Each pipeline rank plays the first of its
// stages, so that ranks of neighbouring stages meet.
std::vector<Plan> plans_of_all_ranks(const StepRequest& request, StepPart part);

// Of the ranks that hold the stage, the one that the others wait for: whose attention has the most allowed
// pairs (the first of them). Where a token is written it is the rank that has its row, and so computes all
// that is not attention: others may have a key more.
Rank busiest_rank(const StepRequest& request, int stage);

}  // namespace cp
