#include "sim/planner/models/layer_list.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shared/base/index.h"
#include "shared/base/text.h"
#include "sim/planner/models/lfm2.h"

namespace cp::sim {
namespace {

class LayerList {
 public:
  LayerList(const Family& family, ConfigFields& fields, std::int64_t layers)
      : family_(family), fields_(fields), kinds_(idx(layers)) {}

  // no_rope_layers has a 0 for each layer without positions, and a 1 for each other one; if it is empty, each
  // layer of so many is without.
  void take_positions() {
    const std::vector<std::int64_t> has_positions = fields_.wholes("no_rope_layers");
    if (!has_positions.empty() && static_cast<std::int64_t>(has_positions.size()) != size()) {
      fields_.fail(str("no_rope_layers has ", has_positions.size(), " entries, and num_hidden_layers is ",
                       size(), "; list one for each layer, or none"));
      return;
    }
    const std::int64_t every = fields_.whole("no_rope_layer_interval").value_or(family_.no_rope_every);
    for (std::int64_t layer = 0; layer < size(); ++layer) {
      if (!has_positions.empty())
        kinds_[idx(layer)].rotary = has_positions[idx(layer)] != 0;
      else if (every > 0)
        kinds_[idx(layer)].rotary = (layer + 1) % every != 0;
    }
  }

  void take_attention() {
    if (family_.convolves) return take_convolutions();
    const bool used = fields_.flag("use_sliding_window").value_or(!family_.window_needs_flag);
    // Where it is not used, transformers 5 write 0.
    std::optional<std::int64_t> window = used ? fields_.size("sliding_window") : std::nullopt;
    if (used && !window && !fields_.mentions("sliding_window") && family_.window) {
      window = family_.window;
      fields_.assume(str("sliding_window is missing, so ", *family_.window, " is taken, the default of ",
                         family_.model_type));
    }
    std::optional<std::int64_t> chunk = fields_.size("attention_chunk_size");
    if (!chunk && family_.chunk) {
      chunk = family_.chunk;
      fields_.assume(str("attention_chunk_size is missing, so ", *chunk, " is taken, the default of ",
                         family_.model_type));
    }
    if (family_.recurrence == RecurrenceRule::decay) return take_pattern();
    for (const char* key : {"hybrid_override_pattern", "layers_block_type"}) {
      if (!fields_.has(key)) continue;
      fields_.fail(str(key,
                       " is read of model_type nemotron_h alone, whose layers have one part each; leave it "
                       "out, or set model_type"));
      return;
    }
    const std::vector<std::string> types = fields_.words("layer_types");
    if (types.empty() && family_.recurrence == RecurrenceRule::delta) return take_full_layers();
    if (!types.empty()) return take_types(types, used, window, chunk);
    if (family_.rope_in_windows_alone && !window) {
      fields_.fail(
          "sliding_window is 0 or null, and layers without a window have no positions in this family; give a "
          "number of tokens, as 4096, or list full_attention for each layer in layer_types");
      return;
    }
    if (family_.chunk) return take_chunks(chunk);
    if (!used || !window) return;
    const std::int64_t pattern = fields_.whole("sliding_window_pattern").value_or(family_.full_layer_every);
    for (std::int64_t layer = full_layers_first(); layer < size(); ++layer) {
      LayerKind& kind = kinds_[idx(layer)];
      if (family_.no_rope_every > 0 && kind.rotary) continue;  // SmolLM3: windows are of the others
      if (pattern <= 1 || (layer + 1) % pattern != 0) kind.window = window;
    }
  }

  // What the pattern says of each layer stands.
  void take_experts(bool has_experts) {
    if (has_pattern_ && has_experts) return;
    if (!has_experts) {
      for (LayerKind& kind : kinds_) require_no_experts(kind);
      return;
    }
    const std::int64_t first_dense = fields_.whole(family_.first_dense_key).value_or(family_.first_dense);
    if (family_.first_dense > 0 && !fields_.has(family_.first_dense_key))
      fields_.assume(str(family_.first_dense_key, " is missing, so ", first_dense,
                         " is taken, the default of ", family_.model_type));
    const std::vector<std::int64_t> only_mlp = fields_.wholes("mlp_only_layers"),
                                    only_experts = fields_.wholes("moe_layers"), flags = flags_of_layers();
    for (const auto* list : {&only_mlp, &only_experts}) {
      for (const std::int64_t layer : *list) {
        if (layer >= size()) {
          fields_.fail(str(list == &only_mlp ? "mlp_only_layers" : "moe_layers", " has layer ", layer,
                           ", and num_hidden_layers is ", size(), "; use 0 to ", size() - 1));
          return;
        }
      }
    }
    const auto is_in = [](const std::vector<std::int64_t>& list, std::int64_t layer) {
      return std::find(list.begin(), list.end(), layer) != list.end();
    };
    // Of so many layers the last one has experts.
    std::int64_t step = 1;
    for (const char* key : {"decoder_sparse_step", "interleave_moe_layer_step"})
      step = std::max(step, fields_.size(key).value_or(1));
    // Of so many layers the first one has.
    const std::int64_t every = flags.empty() ? fields_.size("moe_layer_freq").value_or(1) : 1;
    for (std::int64_t layer = 0; layer < size(); ++layer) {
      bool experts = layer >= first_dense && (layer + 1) % step == 0 && layer % every == 0;
      if (!only_experts.empty()) experts = is_in(only_experts, layer);
      if (!flags.empty()) experts = flags[idx(layer)] != 0;
      kinds_[idx(layer)].dense = !experts || is_in(only_mlp, layer);
    }
    if (size() > 0 && std::all_of(kinds_.begin(), kinds_.end(), [](const LayerKind& k) { return k.dense; }))
      fields_.fail(str("none of ", size(), " layers has experts (", family_.first_dense_key, " ", first_dense,
                       ", one of each ", step * every, " after it, mlp_only_layers names ", only_mlp.size(),
                       "); leave the number of experts out, or make these smaller"));
  }

  std::vector<LayerKind> take() && {
    // What has no attention has no positions that it might lack.
    for (LayerKind& kind : kinds_) {
      if (family_.rope_in_windows_alone) kind.rotary = kind.window.has_value();
      kind.rotary = kind.rotary || kind.mixer != Mixer::attention;
    }
    return std::move(kinds_);
  }

 private:
  static constexpr const char* kLetters = "hybrid_override_pattern";

  std::int64_t size() const { return static_cast<std::int64_t>(kinds_.size()); }

  bool has_letters() const { return fields_.has(kLetters); }

  // `dense` sets a layer apart from those with experts.
  void require_no_experts(LayerKind& kind) {
    if (has_pattern_ && kind.mixer == Mixer::none && !kind.dense)
      fields_.fail(str(pattern_key_, has_letters() ? " has E" : " has \"moe\"",
                       ", and n_routed_experts is missing; add how many experts a layer has"));
    kind.dense = false;
  }

  // moe_layer_freq as a list has a 1 for each layer with experts, and a 0 for each other one.
  std::vector<std::int64_t> flags_of_layers() {
    if (!fields_.is_list("moe_layer_freq")) return {};
    std::vector<std::int64_t> flags = fields_.wholes("moe_layer_freq");
    if (static_cast<std::int64_t>(flags.size()) == size()) return flags;
    fields_.fail(str("moe_layer_freq has ", flags.size(), " entries, and num_hidden_layers is ", size(),
                     "; list one for each layer, or give one number"));
    return std::vector<std::int64_t>(idx(size()), 1);
  }

  void take_convolutions() {
    const std::vector<Mixer> mixers = lfm2_mixers(family_, fields_, size());
    for (std::size_t layer = 0; layer < mixers.size(); ++layer) kinds_[layer].mixer = mixers[layer];
  }

  // Of Qwen3-Next: each fourth layer attends, and the others have a recurrence.
  void take_full_layers() {
    const std::int64_t interval = fields_.size("full_attention_interval").value_or(family_.full_layer_every);
    for (std::int64_t layer = 0; layer < size(); ++layer) {
      if ((layer + 1) % interval != 0) kinds_[idx(layer)].mixer = Mixer::recurrence;
    }
  }

  // Of Nemotron-H: a letter for each layer, which has one part; or, as Transformers 5 save it, a word.
  std::string pattern_of_words(const std::vector<std::string>& words) {
    static const std::map<std::string_view, char> kWords = {{"mamba", 'M'},     {"linear_attention", 'M'},
                                                            {"attention", '*'}, {"full_attention", '*'},
                                                            {"mlp", '-'},       {"moe", 'E'}};
    std::string pattern;
    for (const std::string& word : words) {
      const auto letter = kWords.find(word);
      if (letter == kWords.end()) {
        fields_.fail(str("layers_block_type has \"", word, "\" for layer ", pattern.size(),
                         "; what is described is mamba (or linear_attention), attention (or "
                         "full_attention), mlp and moe"));
        return "";
      }
      pattern += letter->second;
    }
    return pattern;
  }

  // Both may be there, and must say the same then.
  void take_pattern() {
    const std::vector<std::string> words = fields_.words("layers_block_type");
    if (!has_letters() && words.empty()) {
      fields_.fail(
          "hybrid_override_pattern is missing; write a letter for each layer: M (Mamba-2), * "
          "(attention), - (an MLP) or E (experts); or in layers_block_type a word for each: mamba, "
          "attention, mlp or moe");
      return;
    }
    const std::string of_words = pattern_of_words(words);
    if (!words.empty() && of_words.empty()) return;
    std::string pattern = of_words;
    if (has_letters()) {
      const std::optional<std::string> letters = fields_.word(kLetters);
      if (!letters) return;  // it is no text, which is said
      pattern = *letters;
    } else {
      pattern_key_ = "layers_block_type";
    }
    if (has_letters() && !words.empty() && pattern != of_words) {
      fields_.fail(str("hybrid_override_pattern is ", pattern, ", and layers_block_type says ", of_words,
                       "; leave one of the two out"));
      return;
    }
    if (static_cast<std::int64_t>(pattern.size()) != size()) {
      fields_.fail(str(pattern_key_, " has ", pattern.size(), has_letters() ? " letters" : " entries",
                       ", and num_hidden_layers is ", size(), "; write one for each layer"));
      return;
    }
    for (std::size_t layer = 0; layer < pattern.size(); ++layer) {
      LayerKind& kind = kinds_[layer];
      switch (pattern[layer]) {
        case 'M':
          kind.mixer = Mixer::recurrence, kind.has_mlp = false;
          break;
        case '*':
          kind.has_mlp = false;
          break;
        case '-':
          kind.mixer = Mixer::none, kind.dense = true;
          break;
        case 'E':
          kind.mixer = Mixer::none;
          break;
        default:
          fields_.fail(str("hybrid_override_pattern has '", pattern.substr(layer, 1), "' for layer ", layer,
                           "; what is described is M (Mamba-2), * (attention), - (an MLP) and E (experts)"));
          return;
      }
    }
    has_pattern_ = true;
  }

  // Chunks go with positions (Llama 4): layers without see all keys.
  void take_chunks(const std::optional<std::int64_t>& chunk) {
    for (LayerKind& kind : kinds_) {
      if (kind.rotary) kind.chunk = chunk;
    }
  }

  // `slides`: whether the window is used at all; if not, layers that would have it see all keys.
  void take_types(const std::vector<std::string>& types, bool slides,
                  const std::optional<std::int64_t>& window, const std::optional<std::int64_t>& chunk) {
    if (static_cast<std::int64_t>(types.size()) != size()) {
      fields_.fail(str("layer_types has ", types.size(), " entries, and num_hidden_layers is ", size(),
                       "; list one for each layer"));
      return;
    }
    for (std::size_t layer = 0; layer < types.size(); ++layer) {
      const std::string& type = types[layer];
      LayerKind& kind = kinds_[layer];
      const bool windowed = type == "sliding_attention", chunked = type == "chunked_attention";
      if (type == "linear_attention" && family_.recurrence) {
        kind.mixer = Mixer::recurrence;
        continue;
      }
      if (windowed && slides) kind.window = window;
      if (chunked) kind.chunk = chunk;
      if ((windowed && slides && !window) || (chunked && !chunk)) {
        fields_.fail(str("layer_types has ", type, ", and ",
                         windowed ? "sliding_window" : "attention_chunk_size",
                         " is missing; add how many tokens that is"));
        return;
      }
      if (!windowed && !chunked && type != "full_attention") {
        fields_.fail(str("layer_types has \"", type, "\"; what is described is full_attention, ",
                         family_.recurrence ? "linear_attention, " : "",
                         "sliding_attention and chunked_attention"));
        return;
      }
    }
  }

  // Of Qwen's models the first max_window_layers see all keys.
  std::int64_t full_layers_first() {
    if (!family_.window_needs_flag) return 0;
    return std::min(size(), fields_.whole("max_window_layers").value_or(0));
  }

  const Family& family_;
  ConfigFields& fields_;
  std::vector<LayerKind> kinds_;
  bool has_pattern_ = false;
  const char* pattern_key_ = kLetters;  // or the key of its words
};

}  // namespace

std::vector<LayerKind> layers_of_config(const Family& family, ConfigFields& fields, std::int64_t layers,
                                        bool has_experts) {
  LayerList list(family, fields, layers);
  list.take_positions();
  list.take_attention();
  list.take_experts(has_experts);
  return std::move(list).take();
}

}  // namespace cp::sim
