// The operations of RowKernel (plan.h), and what each needs beside its views: its rule. This header is the
// definition of their arithmetic; a device that computes one computes this.
//
// Kernels of rows work on rows one by one, or move whole rows, and their time is that of their memory
// traffic. A view has as many rows as its first dimension says, unless something else is said. Each view has
// a dtype of its own, f32, f16 or bf16, but for those that are called statistics, which are f32, and indices,
// which are i32. Arithmetic is f32 at least, sums run in ascending order, and each result is rounded once.
//
// Views come in the order in which they are named here. A result stands in `writes`, or in `updates` if it is
// added to what is there: first the results with rows, then gradients of weights, which have one dimension.
//
// Where the formulas leave something open, Hugging Face's transformers decides, and it is said which. How the
// columns of fused matrices lie (q, k, v and gates; gate and up) stands in shared/transformer/weights.h.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "shared/placement/index_set.h"

namespace cp {

enum class RowOperation : std::uint8_t {
  rms_norm,
  rms_norm_backward,
  rotary,
  rotary_backward,
  gated_activation,
  gated_activation_backward,
  embed,
  embed_backward,
  cross_entropy,
  cross_entropy_backward,
  route,
  route_backward,
  dispatch,
  combine,
  add_bias,
  squared_norm,
  optimizer,
  output_gate,
  output_gate_backward,
  short_convolution,
  short_convolution_backward,
  decay_and_beta,
  decay_and_beta_backward,
  gated_norm,
  gated_norm_backward,
  norm_sums,           // of rows whose columns other ranks have too: of each row, sums of squares
  norm_sums_backward,  // and sums of products with the gradients of the norm's output
  group_bias,
  group_bias_backward,
};
// The name of the operation in Targets, traces and messages: "rms_norm".
std::string_view name(RowOperation operation);

// Hugging Face's names are silu, gelu, gelu_pytorch_tanh, relu, relu2 and quick_gelu; identity is of products
// alone, as gated convolutions have them (LFM2).
enum class ActivationFunction : std::uint8_t {
  silu,       // x / (1 + exp(-x))
  gelu,       // x Phi(x)
  gelu_tanh,  // x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))
  relu,
  relu2,       // relu(x)^2
  quick_gelu,  // x / (1 + exp(-1.702 x))
  identity,    // x
};

// ---- norms ----

//   rms_norm            reads x [n, c], weights unless unweighted, and squares if ranks > 1
//                       writes y [n, c]
//   rms_norm_backward   reads x, weights unless unweighted, dy [n, c], and squares and sums if ranks > 1
//                       gives dx and the gradient of each weight
//   norm_sums           reads x; writes squares [n, kinds of groups], statistics
//   norm_sums_backward  reads x, weights, dy; writes sums [n, kinds of groups], statistics
//
// Of each group of columns, with o = 1 if unit_offset and else 0, and w + o = 1 if unweighted; z = x and B =
// 0, or if centered z = x - the mean of x, and B the mean of (w + o) dy, each over the group:
//   S = sum of z z,  T = sum of (w + o) dy z                 over the group
//   r = 1 / sqrt(S / (width ranks) + eps)
//   y = z r (w + o)
//   dx = r ((w + o) dy - B) - z r^3 T / (width ranks)
//   dw = sum of dy z r                                       over rows and groups
// Norm_sums gives S of the one group of each kind, and its backward form T. The ranks that share the rows
// add both up, and the norms read the sums. Columns behind the last group are copied, and so are their
// gradients.
//
// Columns come in `groups` groups of `width`, each normalized alone with the first weight, [width]; behind
// them, if there is a second weight, in `more_groups` of `more_width`. So a layer's rows are one group, heads
// of q and k are groups of two weights, and a latent row is a group with a rest.
struct NormRule {
  double eps = 1e-6;
  bool unit_offset = false;  // the factor is 1 + weight (Gemma)
  std::int64_t groups = 1, width = 0;
  std::int64_t more_groups = 0, more_width = 0;
  std::int64_t ranks = 1;   // that have `width` columns of a group each; more than 1 only with one group
  bool unweighted = false;  // no group has a weight (Llama 4)
  bool centered = false;    // LayerNorm without a bias (Cohere); of groups that no ranks share
  bool operator==(const NormRule&) const = default;
  std::int64_t kinds_of_groups() const { return more_groups > 0 ? 2 : 1; }
  std::int64_t weights() const { return unweighted ? 0 : kinds_of_groups(); }
  std::int64_t normalized() const { return groups * width + more_groups * more_width; }  // columns
};

// ---- rotary embeddings ----

//   rotary              reads matrices, and the table [positions, d] of statistics; writes matrices
//   rotary_backward     reads gradients of what was written, and the table
//                       writes gradients of what was read
//
// Moves take columns of a matrix that is read to columns of one that is written. Rotated columns are the d
// numbers of a head, of which pair i of d / 2, (a, b), of a row at position p is turned by the angle p f_i:
//   a cos - b sin,  b cos + a sin
// A pair is the columns i and i + d / 2 (rotate_half), or 2 i and 2 i + 1 if they are interleaved; they stay
// where they are, unlike in apply_rotary_pos_emb_interleave, which gives the same scores. Row p of the table
// has d / 2 cosines, then d / 2 sines (shared/transformer/rotary_table.h). Where a table has these times a
// number, as yarn's, pairs and their gradients are multiplied with it, too. Gradients are turned back, and
// where several moves read one column its gradient is the sum of theirs.
//
// Scaled columns are not rotated. They and their gradients are multiplied with query_scale(rule, p), which
// is 1 + temperature ln(1 + floor((p + 1) / floor)).
//
// Without a rule the kernel has shapes only: that of serving, which has no table and writes to the cache.

// `width` columns for each of `heads` heads: of head h, from column from + h from_step of the matrix
// `source`, to column to + h to_step of the matrix `target`. Heads with from_step 0 all read the same ones.
struct ColumnMove {
  std::int64_t source = 0, from = 0, from_step = 0;  // source: its index among what rotary reads
  std::int64_t target = 0, to = 0, to_step = 0;      // target: its index among what rotary writes
  std::int64_t heads = 1, width = 0;
  bool rotated = false, scaled = false;
  bool operator==(const ColumnMove&) const = default;
};
// Rows are those of `sequences` sequences, one behind the other. `positions` are those of a sequence's rows,
// counted from its begin, whatever documents it is packed of: angles of one document differ by the same
// amount for all of its rows, which their scores do not show.
struct RotaryRule {
  std::vector<ColumnMove> moves;
  std::int64_t sequences = 1;
  IndexSet positions;
  bool interleaved = false;
  double temperature = 0, floor = 0;  // floor: above 0 where anything is scaled
  bool operator==(const RotaryRule&) const = default;
};
float query_scale(const RotaryRule& rule, std::int64_t position);

// ---- activations, gates, biases ----

//   gated_activation           reads up [n, 2 c], the gate and then up, or without gates [n, c]
//                              reads weights [n, 1], statistics, of experts: the router's factors of rows
//                              writes y [n, c] = f(gate) up weight, or f(up) weight
//   gated_activation_backward  reads up, weights, dy; writes d up, and d weights if there are weights
// With a limit L, the gate, or without gates up, is min(gate, L), and what it multiplies is max(-L, min(up,
// L)); where a limit holds the slope is 0. The offset is added to what the gate multiplies, behind its
// limits. If they weigh inputs, weights multiply gate and up, before all that, and not y.
//
//   output_gate                reads x, gates [n, c]; writes y = x sigmoid(gates)
//   output_gate_backward       reads dy, x, gates; writes dx, d gates
//   add_bias                   reads bias [c]; updates y [n, c]
//                              or reads dy [n, c] and gives the gradient of the bias
//   group_bias                 reads biases [g, c], and weights [n, 1], statistics, if rows have them
//                              updates y [n, c]: to row i it adds weight biases[i / (n / g)]; g divides n
//   group_bias_backward        reads dy [n, c]; gives d biases [g, c]
//                              or reads dy, biases, weights; gives d biases, and updates d weights [n, 1],
//                              which come last
// Gates and biases have no rule.
struct ActivationRule {
  ActivationFunction function = ActivationFunction::silu;
  bool gated = true;
  double limit = 0;   // 0: none
  double offset = 0;  // of gated ones
  bool weighs_inputs = false;
  bool operator==(const ActivationRule&) const = default;
};

// ---- rows of recurrent layers ----

//   short_convolution           reads x [n, c], weights [c taps]; a bias [c] and a halo [h, c] if it has them
//                               writes q, k, v, which share the c columns, or y [n, c]
//   short_convolution_backward  reads x, weights, bias, halo, and dq, dk, dv, or dy [n, c]
//                               writes dx, and d halo if there is one; gives d weights, d bias
// With z[i] = bias + sum over j of weights[j] x[i - (taps - 1) + j] for each column, whose weights stand side
// by side, a column is silu(z), or z if it is `plain`, as in LFM2. With `normalized` the columns of q and k
// are heads of so many, and each is divided by sqrt(sum of squares + eps) then, as Qwen3-Next does, whose eps
// is 1e-6. V stays, and y has no heads.
//
// Which rows are one another's neighbours say runs, of each of `sequences` sequences alike. Rows of x are
// those of one sequence behind the other; a run of x has rows first .. first + rows - 1 of each. In the halo
// the rows of one run stand together, for all sequences: sequence s has rows first + s rows .. first + (s +
// 1) rows - 1. A run that begins has zeros before it; before any other there is the run before. Every row of
// x is in one run.
//
// Without a rule the kernel has shapes only: that of serving, which updates cached rows.
struct ConvolvedRun {
  std::int64_t first = 0, rows = 0;
  bool of_halo = false, begins = false;
  bool operator==(const ConvolvedRun&) const = default;
};
struct ConvolutionRule {
  std::int64_t taps = 1, sequences = 1;
  std::vector<ConvolvedRun> runs;
  std::int64_t normalized = 0;  // 0: nothing is
  double eps = 1e-6;
  bool plain = false;  // nothing is computed behind the convolution: no silu
  bool operator==(const ConvolutionRule&) const = default;
};

//   decay_and_beta           reads numbers [n, 2 h] or [n, h], and A_log and dt_bias side by side, [2 h]
//                            writes log_decay, beta [n, h], statistics
//   decay_and_beta_backward  reads numbers, A_log and dt_bias, d log_decay, d beta, statistics
//                            writes d numbers; gives the gradient of A_log and dt_bias
// Of two numbers for each head, those of b come first (gated delta net): beta = sigmoid(b), with s =
// softplus(a + dt_bias) and log_decay = -exp(A_log) s. Of one (Mamba-2), it is a, and beta = s. No rule.
//
//   gated_norm           reads x, gates [n, c], weight [w]; or x, gates, v [n, c], weight, skip [h]
//                        writes y [n, c]
//   gated_norm_backward  reads dy, x, gates, weight; or dy, x, gates, v, weight, skip
//                        writes dx, d gates, and dv; gives d weight, and d skip
// With groups of `width` columns, each with r = 1 / sqrt(mean of squares + eps), and the weight of column i
// modulo w:
//   y = x r weight silu(gates)                                        gated delta net
//   y = u r weight,  u = (x + skip v) silu(gates),  r that of u       Mamba-2; skip is one number for a head
struct GatedNormRule {
  std::int64_t width = 0;
  double eps = 1e-6;
  bool operator==(const GatedNormRule&) const = default;
};

// ---- both ends of a model ----

//   embed           reads tokens [n], indices, and the table [rows, c]; writes x [n, c]
//   embed_backward  reads tokens, dx; updates the gradient of the table
// x = scale table[token - first], and zeros for tokens of other ranks: x of all is the sum over the tp ranks.
//
//   cross_entropy   reads logits [n, columns]; writes maxima [n, 1], statistics
//                   reads logits, maxima, labels [n], indices; writes sums [n, 2], statistics
//                   reads logits, labels; writes maxima and sums
//   cross_entropy_backward
//                   reads logits, maxima, sums, labels, weight [1], a statistic
//                   writes d logits [n, columns], losses [n], statistics
// With l = logit_scale times the logits of the rank's tokens, or cap tanh(l / cap) of that if there is a cap,
// the maximum is that of l, and the sums are those of exp(l - maximum) and of l of the label, 0 if another
// rank has it. The tp ranks take the maximum of the one over all of them, and then the sum of the other two.
// Then:
//   loss = log(first sum) + maximum - second sum
//   d logits = logit_scale weight (exp(l - maximum) / first sum - (1 at the label)),
//              times 1 - (l / cap)^2 if capped
// and both are 0 for an ignored label. Losses are not weighted. The weight is what a row's loss counts in the
// loss of the step: 1 / the number of labels of the global batch that are not ignored, times what the losses
// of prediction layers count. Columns of no token have the gradient 0.
//
// The tokens first .. first + count - 1 are those of the rank. Labels equal to `ignored` have no loss.
struct VocabularyRule {
  std::int64_t first = 0, count = 0;
  double scale = 1;             // of embedded rows: sqrt(hidden) in Gemma
  double softcap = 0;           // of logits; 0: none (Gemma 2)
  double logit_scale = 1;       // what logits are multiplied with first (Cohere)
  std::int64_t ignored = -100;  // as PyTorch's cross_entropy
  bool operator==(const VocabularyRule&) const = default;
};

// ---- experts ----

//   route           reads logits [n, experts]; or these, and a correction [experts], a statistic
//                   writes weights [n, top_k], statistics, and the chosen experts [n, top_k], indices
//                   updates loads [experts], a statistic, if anybody wants them
//   route_backward  reads logits, chosen, d weights [slots, 1], statistics; writes d logits
// Scores are the softmax of the logits, or their sigmoids. The top_k best are chosen, by descending score; of
// equal ones the first expert comes first. With groups, experts stand in groups of equal size, and only those
// of the top_groups best groups are chosen from: a group is worth its largest score with a softmax
// (DeepSeek-V2), and the sum of its two largest ones with sigmoids (DeepSeek-V3).
//   weight = scale score / (sum of the chosen scores if normalized, else 1)
// A correction is added to the scores where groups and experts are chosen, and weights are made of the scores
// without it (DeepSeek-V3, arXiv 2412.19437, equation 16; its e_score_correction_bias). It has no gradient.
// To the load of an expert are added the rows that choose it, whole numbers, which are exact up to 2^24.
// Backward, the gradient of a weight is in the slot of its choice, and a choice that was dropped has none.
// Gradients go through the softmax and the sum of the chosen scores, not through the choice.
struct RouterRule {
  bool sigmoid = false;  // else softmax
  std::int64_t groups = 1, top_groups = 1;
  bool normalized = true;
  double scale = 1;
  // Of route_backward, whose gradients of weights stand in slots: as SlotsRule.
  std::int64_t ranks = 1;
  bool operator==(const RouterRule&) const = default;
};

//   dispatch  reads x [n, c], weights [n, top_k], chosen; writes rows [slots, c], weights [slots, 1]
//             reads x, chosen; writes rows
//             reads rows [slots, c] as they arrived; writes them sorted by expert
//   combine   reads rows [slots, c], chosen; writes y [n, c], the sum of the rows of a token's slots
//             reads rows sorted by expert; writes them as they leave
// Everything follows from `chosen`, what route wrote, so that the passes agree. A rank has equally many slots
// for each of the ep ranks: a block. The e = experts / ranks experts of a rank share all of its slots,
// ceil(slots / e) rows each, the last ones fewer or none; of an expert's rows each rank fills floor(rows /
// ranks). In a block they stand by expert, one behind the other from its begin on. A choice takes the next
// free slot of its expert, in the order of rows and then of choices; where none is left it is dropped, and
// adds nothing to its token. What arrives are the blocks of all ranks, by rank; sorted, an expert has its
// rows by rank. Slots that nobody took are zeros, and so are rows of no slot.
struct SlotsRule {
  std::int64_t experts = 0;  // of the layer, on all ranks
  std::int64_t ranks = 1;    // that share them
  bool operator==(const SlotsRule&) const = default;
};

// ---- update ----

//   squared_norm  reads any views; writes [1], a statistic: the sum of g g / copies
struct SquaredNormRule {
  // Of each view that is read, how many of the ranks that add their numbers up have the same elements.
  std::vector<std::int64_t> copies;
  bool operator==(const SquaredNormRule&) const = default;
};

//   optimizer  reads gradients [n], the squared norm [1] and schedule [2], statistics
//              updates parameters [n], statistics, and states [states n] unless there are none
//              writes the parameters in another dtype, if anybody wants them
// The schedule is the learning rate lr, and the number t of the step, from 1 on. States stand one behind the
// other: m, then v. With g = gradient min(1, max_norm / (sqrt(squared norm) + 1e-6)), as in
// torch.nn.utils.clip_grad_norm_, two states are torch.optim.AdamW (Loshchilov and Hutter 2019):
//   m = b1 m + (1 - b1) g,  v = b2 v + (1 - b2) g g
//   p = p - lr decay p - lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)
// and fewer are torch.optim.SGD, without m where there is no state:
//   g = g + decay p,  m = b1 m + g,  p = p - lr m
// All parameters decay, norms and biases among them.
struct OptimizerRule {
  std::int64_t states = 2;           // 2: AdamW; 1: SGD with momentum b1; 0: SGD
  double beta1 = 0.9, beta2 = 0.95;  // 0.95: of Llama 3 and DeepSeek-V3
  double eps = 1e-8, decay = 0.1;
  double max_norm = 1;  // 0: gradients are not clipped
  bool operator==(const OptimizerRule&) const = default;
};

// std::monostate: the operation needs nothing beside its views.
using RowRule = std::variant<std::monostate, NormRule, RotaryRule, ActivationRule, VocabularyRule, RouterRule,
                             SlotsRule, SquaredNormRule, OptimizerRule, ConvolutionRule, GatedNormRule>;

// The words of texts and of plan.proto, in the order of the variant.
inline constexpr std::array<std::string_view, std::variant_size_v<RowRule>> kRowRules = {
    "none",  "norm",         "rotary",    "activation",  "vocabulary", "router",
    "slots", "squared_norm", "optimizer", "convolution", "gated_norm"};

// Makes the rule of that name, with defaults. False if there is none.
bool choose_rule(RowRule& rule, std::string_view name);

// Calls visit(name, field) for each field of a rule, in the order of definition, as visit_fields() of
// operations.h does for operations.
template <class Rule, class Visit>
void visit_rule_fields(Rule& rule, Visit&& visit) {
  using T = std::remove_const_t<Rule>;
  if constexpr (std::is_same_v<T, NormRule>) {
    visit("eps", rule.eps), visit("unit_offset", rule.unit_offset);
    visit("groups", rule.groups), visit("width", rule.width);
    visit("more_groups", rule.more_groups), visit("more_width", rule.more_width), visit("ranks", rule.ranks);
    visit("unweighted", rule.unweighted), visit("centered", rule.centered);
  } else if constexpr (std::is_same_v<T, ColumnMove>) {
    visit("source", rule.source), visit("from", rule.from), visit("from_step", rule.from_step);
    visit("target", rule.target), visit("to", rule.to), visit("to_step", rule.to_step);
    visit("heads", rule.heads), visit("width", rule.width), visit("rotated", rule.rotated);
    visit("scaled", rule.scaled);
  } else if constexpr (std::is_same_v<T, RotaryRule>) {
    visit("moves", rule.moves), visit("sequences", rule.sequences), visit("positions", rule.positions);
    visit("interleaved", rule.interleaved);
    visit("temperature", rule.temperature), visit("floor", rule.floor);
  } else if constexpr (std::is_same_v<T, ActivationRule>) {
    visit("function", rule.function), visit("gated", rule.gated);
    visit("limit", rule.limit), visit("offset", rule.offset), visit("weighs_inputs", rule.weighs_inputs);
  } else if constexpr (std::is_same_v<T, VocabularyRule>) {
    visit("first", rule.first), visit("count", rule.count), visit("scale", rule.scale);
    visit("softcap", rule.softcap), visit("logit_scale", rule.logit_scale), visit("ignored", rule.ignored);
  } else if constexpr (std::is_same_v<T, RouterRule>) {
    visit("sigmoid", rule.sigmoid), visit("groups", rule.groups), visit("top_groups", rule.top_groups);
    visit("normalized", rule.normalized), visit("scale", rule.scale), visit("ranks", rule.ranks);
  } else if constexpr (std::is_same_v<T, SlotsRule>) {
    visit("experts", rule.experts), visit("ranks", rule.ranks);
  } else if constexpr (std::is_same_v<T, SquaredNormRule>) {
    visit("copies", rule.copies);
  } else if constexpr (std::is_same_v<T, OptimizerRule>) {
    visit("states", rule.states), visit("beta1", rule.beta1), visit("beta2", rule.beta2);
    visit("eps", rule.eps), visit("decay", rule.decay), visit("max_norm", rule.max_norm);
  } else if constexpr (std::is_same_v<T, ConvolvedRun>) {
    visit("first", rule.first), visit("rows", rule.rows);
    visit("of_halo", rule.of_halo), visit("begins", rule.begins);
  } else if constexpr (std::is_same_v<T, ConvolutionRule>) {
    visit("taps", rule.taps), visit("sequences", rule.sequences), visit("runs", rule.runs);
    visit("normalized", rule.normalized), visit("eps", rule.eps), visit("plain", rule.plain);
  } else if constexpr (std::is_same_v<T, GatedNormRule>) {
    visit("width", rule.width), visit("eps", rule.eps);
  } else {
    static_assert(std::is_same_v<T, std::monostate>, "a rule without fields");
  }
}

// Whether the operation is computed by a rule. Without it a kernel of such an operation has shapes only: it
// is planned and timed, and no device runs it.
constexpr bool needs_rule(RowOperation operation) {
  switch (operation) {
    case RowOperation::add_bias:
    case RowOperation::group_bias:
    case RowOperation::group_bias_backward:
    case RowOperation::output_gate:
    case RowOperation::output_gate_backward:
    case RowOperation::decay_and_beta:
    case RowOperation::decay_and_beta_backward:
      return false;
    default:
      return true;
  }
}

}  // namespace cp
