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

struct Family {
  std::string_view model_type;
  std::span<const Rule> rules;
  // All experts of a layer in one tensor, [experts, in, out]: gate_up_proj, with gate and up side by side, or
  // in turns if they are interleaved, and down_proj; biases have the same names with _bias.
  bool fuses_experts = false, interleaves = false;
};

Family family_of(std::string_view model_type) {
  static constexpr Family kFamilies[] = {{"mixtral", kMixtral},
                                         {"phi3", kPhi},  // and 4
                                         {"llama4", kLlama4, true},
                                         {"llama4_text", kLlama4, true},
                                         {"gpt_oss", kGptOss, true, true},
                                         {"qwen2_moe", kQwenMoe},
                                         {"qwen3_next", kQwenMoe}};
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

// Of a tensor that has one row: a vector, or a matrix for one number.
std::vector<std::int64_t> shape_of_row(const std::string& tensor, std::int64_t columns) {
  if (tensor.ends_with("shared_expert_gate.weight")) return {1, columns};
  return {columns};
}

}  // namespace

std::int64_t DiskTensor::numel() const {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

DiskNames::DiskNames(std::string_view model_type, const std::vector<TensorShape>& shapes) {
  struct Part {
    std::size_t order;
    const TensorShape* shape;
  };
  const Family family = family_of(model_type);
  const std::int64_t experts = experts_in(shapes);
  std::map<std::string, std::vector<Part>> parts;
  std::map<std::string, DiskTensor> of_experts;
  std::vector<std::string> names;
  for (const TensorShape& shape : shapes) {
    if (const auto of = expert_of(shape.tensor); of && family.fuses_experts) {
      auto [tensor, place] = fused(family, *of, shape, experts);
      const std::string name = tensor.tensor;
      if (of_experts.try_emplace(name, std::move(tensor)).second) names.push_back(name);
      places_[shape.tensor] = std::move(place);
      continue;
    }
    const Named named = on_disk(family.rules, shape.tensor);
    std::vector<Part>& of_name = parts[named.name];
    if (of_name.empty()) names.push_back(named.name);
    of_name.push_back({named.order, &shape});
  }
  for (const std::string& name : names) {
    if (const auto found = of_experts.find(name); found != of_experts.end()) {
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
    tensors_.push_back(
        {name, is_row ? shape_of_row(name, numel) : std::vector<std::int64_t>{numel / columns, columns},
         of_name.front().shape->trained});
  }
}

const DiskPlace& DiskNames::place(const std::string& tensor) const {
  const auto found = places_.find(tensor);
  CP_INVARIANT(found != places_.end(), "the model has no tensor ", tensor);
  return found->second;
}

}  // namespace cp
