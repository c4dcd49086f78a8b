// MixerFacts says what a kind of mixer beside attention is to a step: its parameters, its weights, its steps,
// what it keeps and caches. Each kind has one row, at the end of a file of its own in this folder; mixers.cc
// lists them. Attention, whose rows may be latent ones and gathered late, is written by the layer itself
// (layer_forward.h, layer_backward.h).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shared/fully_shard/stack.h"
#include "shared/transformer/model.h"

namespace cp {

class Activations;
class KvCache;
class Placing;
class StepWriter;
class TensorBlocks;
struct GradientPlace;
struct LayerPlace;
struct LayerWeights;
struct DegreeRefusal;
struct LocalSizes;
struct ParallelLayout;
struct StepContext;
struct Workload;
struct Balance;
namespace detail {
class Complaints;
}

class MixerWriter {
 public:
  virtual ~MixerWriter() = default;
  // Forward: from `rows`, the gathered rows of the norm, [tokens, hidden], to what the projection out takes.
  virtual View forward(const LayerPlace& place, const Window& weights, const View& rows) = 0;
  // The latter in the backward pass, kept or computed again.
  virtual View output(const LayerPlace& place, const Window& weights) = 0;
  // Backward: from the gradient of the latter, `d_out`, to `d_rows`, the partial gradient of the rows. The
  // gradients of all weights but the projection out are written.
  virtual void backward(const LayerPlace& place, const Window& weights, const GradientPlace& gradients,
                        const View& rows, const View& d_out, const View& d_rows) = 0;
};

// Activations of one layer in bytes: its input, and what else each choice of recomputation keeps.
struct LayerKept {
  std::int64_t input = 0;
  std::int64_t cheap = 0;  // norms, activation function: selective computes these again
  std::int64_t rest = 0;   // what comes from products and mixers

  void add(const LayerKept& more) { input += more.input, cheap += more.cheap, rest += more.rest; }
};

// What a mixer needs at least, in bytes, on the rank that has most rows (least_memory.h).
class MixerMemory {
 public:
  virtual ~MixerMemory() = default;
  // What a layer's mixer keeps for the backward pass.
  virtual LayerKept kept() const = 0;
  // What lives at one moment inside of the mixer's region, in either pass.
  virtual std::int64_t bytes_inside() const = 0;
  // What its spliced plans allocate at one moment, beyond what is kept.
  virtual std::int64_t workspace_bytes() const { return 0; }
  // What a layer caches of all requests, however much has been read.
  virtual std::int64_t cached_bytes() const { return 0; }
  // Further moments that may be the fullest: the bytes that live, how many of them spliced plans allocate,
  // and whether gradients of the layer's weights have places by then.
  struct Moment {
    std::int64_t bytes = 0, allocated = 0;
    bool has_gradients = false;
  };
  virtual std::vector<Moment> moments() const { return {}; }
};

// What a rank caches of one layer, however much has been read: elements of states in f32, and rows that a
// convolution saw last, [batch, rows, width], in the workload's dtype. Either may be nothing.
struct MixerCache {
  std::int64_t state = 0;
  Shape convolved = {0, 0, 0};
};

struct MixerFacts {
  Mixer mixer;
  // What units of such layers are called, with an MLP and alone: "recurrent_layers", "recurrence_layers".
  std::string_view with_mlp, alone;

  // ---- of the model ----
  bool (*is_described)(const Transformer& model);  // whether the model says its sizes
  void (*forget)(Transformer& model);              // them
  bool (*has_out_bias)(const Transformer& model);  // of its projection out
  void (*check)(const Transformer& model, detail::Complaints& complaints);  // of described ones
  MixerParameters (*parameters)(const Transformer& model);
  // The same roughly, of sizes whose products 64 bits may not hold.
  double (*estimated)(const Transformer& model);
  void (*hash)(Hasher& hasher, const Transformer& model);
  // "a gated delta net with states of 128 x 128".
  std::string (*text)(const Transformer& model);
  // Bytes that serving caches of one request in a layer, and what they are: "states of recurrent layers f32".
  std::int64_t (*request_bytes)(const Transformer& model, DType dtype);
  std::string_view cached_name;

  // ---- of a layout ----
  // What tp deals to its ranks, and what these are: 16, "key heads of recurrences".
  std::int64_t (*dealt)(const Transformer& model);
  std::string_view dealt_name;
  // Whether rows may be dealt by this balance at home: where a rank has rows in many places, what goes along
  // the sequence would need some from elsewhere before each.
  bool (*takes)(const Balance& balance);
  // With cp > 1, of layouts that are legal otherwise.
  std::optional<DegreeRefusal> (*refuse)(const Transformer& model, const Workload& workload,
                                         const ParallelLayout& layout);

  // ---- of a rank ----
  // Lay the weights that all tp ranks hold alike, and the others, the projection out among them.
  void (*lay_alike)(const Transformer& model, const LocalSizes& sizes, Placing& placing,
                    LayerWeights& weights);
  void (*lay)(const Transformer& model, const LocalSizes& sizes, Placing& placing, LayerWeights& weights);
  // Names what was laid.
  void (*name_tensors)(TensorBlocks& blocks, const StepContext& context, const LayerWeights& weights);
  MixerCache (*cache)(const StepContext& context);  // in serving
  // `cache` is null unless the workload is one of serving.
  std::unique_ptr<MixerWriter> (*writer)(StepWriter& writer, Activations& activations, KvCache* cache);
  // All arguments must outlive it.
  std::unique_ptr<MixerMemory> (*memory)(const Transformer& model, const Workload& workload,
                                         const ParallelLayout& layout, const LocalSizes& sizes);
};

// Has the model say nothing of mixers that no layer has.
void forget_unused_mixers(Transformer& model);

// Null for attention and for none.
const MixerFacts* facts_of(Mixer mixer);
// All rows.
const std::vector<const MixerFacts*>& mixers_beside_attention();

}  // namespace cp
