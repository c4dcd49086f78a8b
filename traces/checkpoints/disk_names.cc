#include "traces/checkpoints/disk_names.h"

#include <algorithm>
#include <charconv>
#include <functional>
#include <numeric>
#include <optional>
#include <span>
#include <utility>

#include "shared/base/error.h"
#include "shared/base/text.h"

namespace cp {
namespace {

// A part of a name, and what stands for it on disk. Tensors that get one name there lie in it in the order of
// their rules.
struct Rule {
  std::string_view ours, on_disk;
};

// The names are those of files that Hugging Face's Transformers 5.24 save.
constexpr Rule kMixtral[] = {{".mlp.gate.", ".block_sparse_moe.gate."},
                             {".mlp.experts.", ".block_sparse_moe.experts."},
                             {".gate_proj.", ".w1."},
                             {".down_proj.", ".w2."},
                             {".up_proj.", ".w3."}};
constexpr Rule kPhi[] = {{".self_attn.q_proj.", ".self_attn.qkv_proj."},
                         {".self_attn.k_proj.", ".self_attn.qkv_proj."},
                         {".self_attn.v_proj.", ".self_attn.qkv_proj."},
                         {".mlp.gate_proj.", ".mlp.gate_up_proj."},
                         {".mlp.up_proj.", ".mlp.gate_up_proj."}};
constexpr Rule kLlama4[] = {{".mlp.gate.", ".feed_forward.router."},
                            {".mlp.shared_experts.", ".feed_forward.shared_expert."},
                            {".mlp.", ".feed_forward."}};
constexpr Rule kGptOss[] = {{".mlp.gate.", ".mlp.router."}};
constexpr Rule kQwenMoe[] = {{".mlp.shared_experts.", ".mlp.shared_expert."}};
// A layer has one norm and one mixer, which may be an MLP.
constexpr Rule kNemotronH[] = {{"model.embed_tokens.", "backbone.embeddings."},
                               {"model.norm.", "backbone.norm_f."},
                               {"model.layers.", "backbone.layers."},
                               {".input_layernorm.", ".norm."},
                               {".post_attention_layernorm.", ".norm."},
                               {".self_attn.", ".mixer."},
                               {".linear_attn.", ".mixer."},
                               {".mlp.", ".mixer."}};

// Of layers with attention and of those with a short convolution. The final norm is called the embedding's.
constexpr Rule kLfm2[] = {{"model.norm.", "model.embedding_norm."},
                          {".input_layernorm.", ".operator_norm."},
                          {".post_attention_layernorm.", ".ffn_norm."},
                          {".self_attn.o_proj.", ".self_attn.out_proj."},
                          {".self_attn.q_norm.", ".self_attn.q_layernorm."},
                          {".self_attn.k_norm.", ".self_attn.k_layernorm."},
                          {".mlp.gate.e_score_correction_bias", ".feed_forward.expert_bias"},
                          {".mlp.", ".feed_forward."},
                          {".gate_proj.", ".w1."},
                          {".down_proj.", ".w2."},
                          {".up_proj.", ".w3."}};

// What mixers project, on disk.
enum class Projection : std::uint8_t {
  as_ours,  // in_proj_qkv, in_proj_z, and so on
  // Of each head of attention queries and gates in q_proj. Of each key head of a recurrence q, k, v and gates
  // in in_proj_qkvz, and what makes beta and the decay in in_proj_ba.
  by_heads,
  in_one,  // in_proj: gates, v, k, q, time steps (Mamba-2's z, x, B, C, dt); conv1d has v, k, q
};

struct Family {
  std::string_view model_type;
  std::span<const Rule> rules;
  // All experts of a layer in one tensor, [experts, in, out]: gate_up_proj, with gate and up side by side, or
  // in turns if they are interleaved, and down_proj; biases have the same names with _bias.
  bool fuses_experts = false, interleaves = false;
  Projection projection = Projection::as_ours;
};

Family family_of(std::string_view model_type) {
  static constexpr Family kFamilies[] = {{"mixtral", kMixtral},
                                         {"phi3", kPhi},  // and 4
                                         {"llama4", kLlama4, true},
                                         {"llama4_text", kLlama4, true},
                                         {"gpt_oss", kGptOss, true, true},
                                         {"qwen2_moe", kQwenMoe},
                                         {"qwen3_next", kQwenMoe, false, false, Projection::by_heads},
                                         {"lfm2", kLfm2},
                                         {"lfm2_moe", kLfm2},
                                         {"nemotron_h", kNemotronH, false, false, Projection::in_one}};
  const auto found = std::find_if(std::begin(kFamilies), std::end(kFamilies),
                                  [&](const Family& family) { return family.model_type == model_type; });
  return found == std::end(kFamilies) ? Family{} : *found;
}

struct Named {
  std::string name;
  std::size_t order = 0;  // of the last rule that applied
};

Named on_disk(std::span<const Rule> rules, std::string name) {
  Named named{std::move(name)};
  for (std::size_t rule = 0; rule < rules.size(); ++rule) {
    const std::size_t at = named.name.find(rules[rule].ours);
    if (at == std::string::npos) continue;
    named.name.replace(at, rules[rule].ours.size(), rules[rule].on_disk);
    named.order = rule;
  }
  return named;
}

// "model.layers.0.mlp.experts." 7 "gate_proj" ".weight"
struct OfExpert {
  std::string before;
  std::int64_t number = 0;
  std::string_view projection, kind;
};

std::optional<OfExpert> expert_of(std::string_view tensor) {
  constexpr std::string_view kExperts = ".mlp.experts.";
  const std::size_t at = tensor.find(kExperts);
  if (at == std::string_view::npos) return std::nullopt;
  OfExpert of;
  const std::size_t begin = at + kExperts.size(), end = tensor.find('.', begin), last = tensor.rfind('.');
  of.before = tensor.substr(0, begin);
  std::from_chars(tensor.data() + begin, tensor.data() + end, of.number);
  of.projection = tensor.substr(end + 1, last - end - 1), of.kind = tensor.substr(last);
  return of;
}

std::int64_t experts_in(const std::vector<TensorShape>& shapes) {
  std::int64_t count = 0;
  for (const TensorShape& shape : shapes) {
    if (const auto of = expert_of(shape.tensor)) count = std::max(count, of->number + 1);
  }
  return count;
}

// Of a tensor of an expert that lies in one of all experts of its layer.
std::pair<DiskTensor, DiskPlace> fused(const Family& family, const OfExpert& of, const TensorShape& shape,
                                       std::int64_t experts) {
  const bool is_bias = of.kind == ".bias", is_down = of.projection == "down_proj";
  // Of the matrix [out, in]; a bias is one row of `out`.
  const std::int64_t out = is_bias ? shape.columns : shape.rows, in = is_bias ? 1 : shape.columns,
                     all = (is_down ? 1 : 2) * out;
  DiskTensor tensor{on_disk(family.rules, of.before).name, {experts}};
  tensor.tensor += str(is_down ? "down_proj" : "gate_up_proj", is_bias ? "_bias" : "");
  if (!is_bias) tensor.shape.push_back(in);
  tensor.shape.push_back(all);
  const bool takes_turns = !is_down && family.interleaves;
  DiskPlace place{tensor.tensor, of.number * in * all, takes_turns ? 2 : 1, all};
  if (of.projection == "up_proj") place.first += takes_turns ? 1 : out;
  if (is_bias) place.column_step = std::exchange(place.row_step, 0);
  return {std::move(tensor), std::move(place)};
}

// A vector has one row. A convolution has one input of each channel.
std::vector<std::int64_t> shape_of(const std::string& tensor, std::int64_t rows, std::int64_t columns,
                                   bool is_row) {
  if (tensor.ends_with("conv1d.weight") || tensor.ends_with(".conv.conv.weight")) return {rows, 1, columns};
  if (is_row && !tensor.ends_with("shared_expert_gate.weight")) return {columns};
  return {rows, columns};
}

// Rows count, from `row` of the tensor on disk on.
struct RowsOnDisk {
  std::int64_t count = 0, row = 0;
};

// The rows of a mixer's tensor of that name, as families with `projection` have them.
struct RowOrder {
  std::string_view tensor;  // the last part of its name
  std::int64_t count = 0;   // of the tensor on disk
  std::vector<RowsOnDisk> stretches;
};
std::optional<RowOrder> rows_of_queries(std::string_view tensor, const Transformer& model) {
  const bool is_gate = tensor.starts_with("gate_proj.");
  if (!model.gated_attention || (!is_gate && !tensor.starts_with("q_proj."))) return std::nullopt;
  RowOrder rows{
      tensor.ends_with(".bias") ? "q_proj.bias" : "q_proj.weight", 2 * model.q_heads * model.head_dim, {}};
  for (std::int64_t head = 0; head < model.q_heads; ++head)
    rows.stretches.push_back({model.head_dim, (2 * head + (is_gate ? 1 : 0)) * model.head_dim});
  return rows;
}
std::optional<RowOrder> rows_of_recurrence(std::string_view tensor, Projection projection,
                                           const Recurrence& r) {
  const std::int64_t keys = r.key_width(), values = r.value_width(), heads = r.value_heads;
  if (projection == Projection::in_one) {
    const std::int64_t all = 2 * values + 2 * keys + heads;
    const auto convolved = [&](std::int64_t v) {
      return std::vector<RowsOnDisk>{{keys, v + values + keys}, {keys, v + values}, {values, v}};
    };
    if (tensor == "in_proj_z.weight") return RowOrder{"in_proj.weight", all, {{values, 0}}};
    if (tensor == "in_proj_qkv.weight") return RowOrder{"in_proj.weight", all, convolved(values)};
    if (tensor == "in_proj_dt.weight")
      return RowOrder{"in_proj.weight", all, {{heads, 2 * values + 2 * keys}}};
    if (tensor == "conv1d.weight" || tensor == "conv1d.bias")
      return RowOrder{tensor, r.convolved(), convolved(0)};
    return std::nullopt;
  }
  const std::int64_t group = heads / r.key_heads,  // value heads of a key head
      of_v = group * r.value_dim, of_head = 2 * r.key_dim + 2 * of_v;
  RowOrder rows{"in_proj_qkvz.weight", r.key_heads * of_head, {}};
  const auto add = [&](std::int64_t count, std::int64_t first, std::int64_t each) {
    for (std::int64_t head = 0; head < r.key_heads; ++head)
      rows.stretches.push_back({count, head * each + first});
  };
  if (tensor == "in_proj_qkv.weight") {
    add(r.key_dim, 0, of_head), add(r.key_dim, r.key_dim, of_head), add(of_v, 2 * r.key_dim, of_head);
  } else if (tensor == "in_proj_z.weight") {
    add(of_v, 2 * r.key_dim + of_v, of_head);
  } else if (tensor == "in_proj_b.weight" || tensor == "in_proj_a.weight") {
    rows.tensor = "in_proj_ba.weight", rows.count = 2 * heads;
    add(group, tensor == "in_proj_b.weight" ? 0 : group, 2 * group);
  } else {
    return std::nullopt;
  }
  return rows;
}

// Of a tensor whose rows have another order on disk.
std::optional<std::pair<DiskTensor, DiskPlace>> reordered(const Family& family, const TensorShape& shape,
                                                          const Transformer& model) {
  const auto behind = [&](std::string_view mixer) {
    const std::size_t at = shape.tensor.find(mixer);
    return at == std::string::npos ? 0 : at + mixer.size();
  };
  const std::size_t recurrence = behind(".linear_attn."), attention = behind(".self_attn.");
  const std::size_t last = std::max(recurrence, attention);
  const std::string_view name = std::string_view(shape.tensor).substr(last);
  std::optional<RowOrder> rows;
  if (recurrence > 0 && family.projection != Projection::as_ours && model.recurrence)
    rows = rows_of_recurrence(name, family.projection, *model.recurrence);
  if (attention > 0 && family.projection == Projection::by_heads) rows = rows_of_queries(name, model);
  if (!rows) return std::nullopt;
  const bool is_row = shape.tensor.ends_with(".bias");
  const std::int64_t width = is_row ? 1 : shape.columns;
  DiskTensor tensor{on_disk(family.rules, shape.tensor.substr(0, last)).name + std::string(rows->tensor), {}};
  tensor.shape = shape_of(tensor.tensor, is_row ? 1 : rows->count, is_row ? rows->count : width, is_row);
  DiskPlace place{tensor.tensor, 0, is_row ? 0 : width, 1, {}};
  std::int64_t begin = 0;
  for (const RowsOnDisk& stretch : rows->stretches) {
    place.stretches.push_back({begin, stretch.row * width});
    begin += stretch.count;
  }
  CP_INVARIANT(begin == (is_row ? shape.columns : shape.rows), shape.tensor, " has ", shape.rows, " x ",
               shape.columns, " elements, and ", begin, " rows have a place on disk");
  return std::pair{std::move(tensor), std::move(place)};
}

}  // namespace

std::int64_t DiskTensor::numel() const {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

DiskNames::DiskNames(std::string_view model_type, const std::vector<TensorShape>& shapes,
                     const Transformer& model) {
  struct Part {
    std::size_t order;
    const TensorShape* shape;
  };
  const Family family = family_of(model_type);
  const std::int64_t experts = experts_in(shapes);
  std::map<std::string, std::vector<Part>> parts;
  std::map<std::string, DiskTensor> together;  // of experts and mixers
  std::vector<std::string> names;
  for (const TensorShape& shape : shapes) {
    std::optional<std::pair<DiskTensor, DiskPlace>> placed;
    if (const auto of = expert_of(shape.tensor); of && family.fuses_experts)
      placed = fused(family, *of, shape, experts);
    else
      placed = reordered(family, shape, model);
    if (placed) {
      auto& [tensor, place] = *placed;
      const std::string name = tensor.tensor;
      if (together.try_emplace(name, std::move(tensor)).second) names.push_back(name);
      places_[shape.tensor] = std::move(place);
      continue;
    }
    const Named named = on_disk(family.rules, shape.tensor);
    std::vector<Part>& of_name = parts[named.name];
    if (of_name.empty()) names.push_back(named.name);
    of_name.push_back({named.order, &shape});
  }
  for (const std::string& name : names) {
    if (const auto found = together.find(name); found != together.end()) {
      tensors_.push_back(found->second);
      continue;
    }
    std::vector<Part>& of_name = parts[name];
    std::stable_sort(of_name.begin(), of_name.end(),
                     [](const Part& a, const Part& b) { return a.order < b.order; });
    const bool is_row = of_name.front().shape->rows == 1;
    std::int64_t numel = 0;
    for (const auto& [order, shape] : of_name) {
      places_[shape->tensor] = {name, numel, shape->columns};
      numel += shape->numel();
    }
    const std::int64_t columns = of_name.front().shape->columns;
    tensors_.push_back({name, shape_of(name, is_row ? 1 : numel / columns, is_row ? numel : columns, is_row),
                        of_name.front().shape->trained});
  }
}

const DiskPlace& DiskNames::place(const std::string& tensor) const {
  const auto found = places_.find(tensor);
  CP_INVARIANT(found != places_.end(), "the model has no tensor ", tensor);
  return found->second;
}

}  // namespace cp
