#include "traces/checkpoints/disk_names.h"

#include <algorithm>
#include <span>
#include <utility>

#include "shared/base/error.h"

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

std::span<const Rule> rules_of(std::string_view family) {
  if (family == "mixtral") return kMixtral;
  if (family == "phi3") return kPhi;  // and 4
  return {};
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

}  // namespace

DiskNames::DiskNames(std::string_view family, const std::vector<TensorShape>& shapes) {
  struct Part {
    std::size_t order;
    const TensorShape* shape;
  };
  std::map<std::string, std::vector<Part>> parts;
  std::vector<std::string> names;
  for (const TensorShape& shape : shapes) {
    const Named named = on_disk(rules_of(family), shape.tensor);
    std::vector<Part>& of_name = parts[named.name];
    if (of_name.empty()) names.push_back(named.name);
    of_name.push_back({named.order, &shape});
  }
  for (const std::string& name : names) {
    std::vector<Part>& of_name = parts[name];
    std::stable_sort(of_name.begin(), of_name.end(),
                     [](const Part& a, const Part& b) { return a.order < b.order; });
    TensorShape whole{name, 0, 0};
    const bool is_vector = of_name.front().shape->rows == 1;
    for (const auto& [order, shape] : of_name) {
      places_[shape->tensor] = {name, whole.numel()};
      if (is_vector)
        whole.rows = 1, whole.columns += shape->columns;
      else
        whole.rows += shape->rows, whole.columns = shape->columns;
    }
    tensors_.push_back(std::move(whole));
  }
}

const DiskPlace& DiskNames::place(const std::string& tensor) const {
  const auto found = places_.find(tensor);
  CP_INVARIANT(found != places_.end(), "the model has no tensor ", tensor);
  return found->second;
}

}  // namespace cp
