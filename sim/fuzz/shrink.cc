#include "sim/fuzz/shrink.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "shared/base/index.h"
#include "shared/base/text.h"
#include "shared/mesh/mesh.h"
#include "sim/fuzz/judge.h"

namespace cp::sim {
namespace {

using google::protobuf::FieldDescriptor;

std::vector<std::string> words(std::string_view text, char separator) {
  std::vector<std::string> result;
  for (const std::string_view word : split(text, separator)) result.emplace_back(word);
  return result;
}

// Smaller numbers, the smallest first; of both parities, since many bugs want one of them.
std::vector<std::int64_t> smaller(std::int64_t value, std::int64_t least) {
  std::vector<std::int64_t> result;
  for (const std::int64_t next : {least, least + 1, value / 2, value / 2 + 1, value - 2, value - 1}) {
    if (next >= least && next < value && (result.empty() || result.back() < next)) result.push_back(next);
  }
  return result;
}

class Simpler {
 public:
  explicit Simpler(const proto::FuzzCase& fuzz_case) : case_(fuzz_case) { case_.clear_finding(); }

  std::vector<proto::FuzzCase> list() {
    common();
    switch (case_.job_case()) {
      case proto::FuzzCase::kRedistribute:
        redistribution();
        break;
      case proto::FuzzCase::kAttention:
        attention();
        break;
      case proto::FuzzCase::kRecurrence:
        recurrence();
        break;
      case proto::FuzzCase::kModel:
        model();
        break;
      case proto::FuzzCase::kProof:
        proof();
        break;
      case proto::FuzzCase::kFlows:
        flows();
        break;
      case proto::FuzzCase::kProgram:
        program();
        break;
      default:
        break;
    }
    return std::move(cases_);
  }

 private:
  // The case with one change.
  template <class Change>
  void with(const Change& change) {
    proto::FuzzCase next = case_;
    change(next);
    if (next.SerializeAsString() != case_.SerializeAsString()) cases_.push_back(std::move(next));
  }
  // A field of the job left out. `job` gives the message of a case that has it.
  template <class Get>
  void without(const Get& job, std::initializer_list<const char*> fields) {
    for (const char* field : fields) {
      with([&](proto::FuzzCase& next) {
        auto* const message = std::invoke(job, next);
        message->GetReflection()->ClearField(message, message->GetDescriptor()->FindFieldByName(field));
      });
    }
  }
  // A whole number of the job made smaller.
  template <class Get>
  void less(const Get& job, const char* field, std::int64_t least) {
    auto* const message = std::invoke(job, case_);
    const FieldDescriptor* descriptor = message->GetDescriptor()->FindFieldByName(field);
    const auto* reflection = message->GetReflection();
    const bool is_wide = descriptor->cpp_type() == FieldDescriptor::CPPTYPE_INT64;
    const std::int64_t value =
        is_wide ? reflection->GetInt64(*message, descriptor) : reflection->GetInt32(*message, descriptor);
    for (const std::int64_t next_value : smaller(value, least)) {
      with([&](proto::FuzzCase& next) {
        if (is_wide)
          reflection->SetInt64(std::invoke(job, next), descriptor, next_value);
        else
          reflection->SetInt32(std::invoke(job, next), descriptor, static_cast<std::int32_t>(next_value));
      });
    }
  }

  void common() {
    for (int i = 0; i < case_.faults_size(); ++i) {
      with([&](proto::FuzzCase& next) { next.mutable_faults()->DeleteSubrange(i, 1); });
    }
    with([](proto::FuzzCase& next) {  // never to all cores, whose order is another one each time
      if (next.order().kind() == proto::Order::parallel) return;
      next.clear_order();
      next.mutable_order()->set_kind(proto::Order::round_robin);
    });
    if (case_.laws_size() == 1) return;
    for (const std::string_view law : laws_of(case_.job_case())) {
      with([&](proto::FuzzCase& next) {
        next.clear_laws();
        next.add_laws(std::string(law));
      });
    }
  }

  // ---- redistributions ----

  static std::string mesh_text(const std::vector<MeshAxis>& axes) {
    std::vector<std::string> parts;
    for (const MeshAxis& axis : axes) parts.push_back(str(axis.name, "=", axis.size));
    return join(parts, ",");
  }

  void redistribution() {
    constexpr auto kJob = &proto::FuzzCase::mutable_redistribute;
    const proto::Redistribute job = case_.redistribute();
    if (!job.to_mesh().empty())
      with([](proto::FuzzCase& next) { next.mutable_redistribute()->clear_to_mesh(); });
    without(kJob, {"target", "gradient_scale", "gradient", "cost", "objective", "travel_dtype",
                   "max_memory_factor"});
    axes(job);
    dimensions(job);
    placements(job);
    without(kJob, {"dtype", "seed"});
  }

  // Of both meshes: axes left out with their placements, smaller ones, ranks in order.
  void axes(const proto::Redistribute& job) {
    const bool one_mesh = job.to_mesh().empty();
    for (const bool to : {false, true}) {
      if (to && one_mesh) continue;
      const Mesh mesh = Mesh::parse(to ? job.to_mesh() : job.mesh());
      const auto set = [&](proto::FuzzCase& next, const std::vector<MeshAxis>& axes) {
        auto& changed = *next.mutable_redistribute();
        (to ? changed.mutable_to_mesh() : changed.mutable_mesh())->assign(mesh_text(axes));
      };
      for (int axis = mesh.num_axes(); axis-- > 0;) {
        if (mesh.num_axes() == 1) break;
        with([&](proto::FuzzCase& next) {
          std::vector<MeshAxis> left = mesh.axes();
          left.erase(left.begin() + axis);
          set(next, left);
          auto& changed = *next.mutable_redistribute();
          const auto drop = [&](std::string* text) {
            std::vector<std::string> each = words(*text, ',');
            if (idx(axis) < each.size()) each.erase(each.begin() + axis);
            *text = without_orders(join(each, ","));
          };
          if (!to) drop(changed.mutable_from());
          if (to || one_mesh) drop(changed.mutable_to());
        });
      }
      for (int axis = 0; axis < mesh.num_axes(); ++axis) {
        for (const std::int64_t size : smaller(mesh.axis_size(axis), 1)) {
          with([&](proto::FuzzCase& next) {
            std::vector<MeshAxis> fewer = mesh.axes();
            fewer[idx(axis)].size = static_cast<int>(size);
            set(next, fewer);
          });
        }
      }
      with([&](proto::FuzzCase& next) { set(next, mesh.axes()); });
    }
  }

  // "S(0)[1],S(0)[0]" as "S(0),S(0)".
  static std::string without_orders(const std::string& text) {
    std::string result;
    for (std::size_t i = 0; i < text.size(); ++i) {
      if (text[i] == '[')
        i = text.find(']', i);
      else
        result += text[i];
    }
    return result;
  }

  void dimensions(const proto::Redistribute& job) {
    if (job.shape() == "scalar") return;
    const std::vector<std::int64_t> sizes = parse_ints(job.shape(), 'x', "size");
    for (std::size_t dim = sizes.size(); dim-- > 0;) {
      if (sizes.size() > 1) without_dimension(sizes, dim);
      for (const std::int64_t size : smaller(sizes[dim], 0)) {
        with([&](proto::FuzzCase& next) {
          std::vector<std::int64_t> changed = sizes;
          changed[dim] = size;
          next.mutable_redistribute()->set_shape(join(changed, "x"));
        });
      }
    }
  }

  // Where no axis shards it; those behind it get new numbers.
  void without_dimension(std::vector<std::int64_t> sizes, std::size_t dim) {
    sizes.erase(sizes.begin() + static_cast<std::ptrdiff_t>(dim));
    with([&](proto::FuzzCase& next) {
      auto& job = *next.mutable_redistribute();
      job.set_shape(join(sizes, "x"));
      for (std::string* text : {job.mutable_from(), job.mutable_to()}) {
        std::vector<std::string> each = words(*text, ',');
        for (std::string& placement : each) {
          if (!placement.starts_with("S(")) continue;
          const std::size_t of = idx(std::stoll(placement.substr(2)));
          if (of == dim) placement = "R";
          if (of > dim) placement.replace(2, str(of).size(), str(of - 1));
        }
        *text = without_orders(join(each, ","));
      }
    });
  }

  void placements(const proto::Redistribute& job) {
    for (const bool to : {false, true}) {
      const std::vector<std::string> each = words(to ? job.to() : job.from(), ',');
      const auto set = [&](proto::FuzzCase& next, std::vector<std::string> changed) {
        auto& message = *next.mutable_redistribute();
        (to ? message.mutable_to() : message.mutable_from())->assign(without_orders(join(changed, ",")));
      };
      for (std::size_t axis = 0; axis < each.size(); ++axis) {
        std::vector<std::string> plainer;
        const std::string& placement = each[axis];
        if (placement != "R") plainer.emplace_back("R");
        const std::size_t comma = placement.find(',');
        if (placement.starts_with("S(") && comma != std::string::npos) {
          plainer.push_back(placement.substr(0, comma) + ")");
          for (const char* split : {"balanced", "head_tail", "striped:1"})
            if (placement.find(split) == std::string::npos)
              plainer.push_back(placement.substr(0, comma + 1) + split + ")");
        }
        if (placement.starts_with("P(") && placement != "P(sum)") plainer.emplace_back("P(sum)");
        for (const std::string& simple : plainer) {
          with([&](proto::FuzzCase& next) {
            std::vector<std::string> changed = each;
            changed[axis] = simple;
            set(next, changed);
          });
        }
      }
      with([&](proto::FuzzCase& next) { set(next, each); });
    }
  }

  // ---- attention ----

  void attention() {
    constexpr auto kJob = &proto::FuzzCase::mutable_attention;
    const proto::Attention job = case_.attention();
    const Mesh mesh = Mesh::parse(job.mesh());
    // Some fields have a meaning only beside others, so they are left out together, too: a step that makes no
    // case would end the search there.
    without(kJob, {"target",      "backward",      "documents",     "window",       "chunk",  "softcap",
                   "sinks",       "dropout",       "dropout_layer", "query_offset", "kv_len", "batch",
                   "format",      "softmax_scale", "v_head_dim",    "gradients",    "lse",    "dkv_dtype",
                   "merge_dtype", "send_empty",    "rotation",      "axis_order",   "dtype",  "slots",
                   "pieces",      "merges",        "rope_dim",      "keys"});
    with([](proto::FuzzCase& next) {
      next.mutable_attention()->clear_latent();
      next.mutable_attention()->clear_rope_dim(), next.mutable_attention()->clear_keys();
    });
    for (const std::int64_t rank : smaller(job.latent(), 1))
      with([&](proto::FuzzCase& next) { next.mutable_attention()->set_latent(rank); });
    with([](proto::FuzzCase& next) {
      next.mutable_attention()->clear_backward();
      next.mutable_attention()->clear_gradients();
    });
    with([](proto::FuzzCase& next) {
      next.mutable_attention()->clear_documents();
      next.mutable_attention()->clear_batch();
    });
    for (const std::int64_t ranks : smaller(mesh.size(), 1)) {
      with([&](proto::FuzzCase& next) {
        next.mutable_attention()->set_mesh(str("cp=", ranks));
        // Degrees that no longer divide.
        if (next.attention().ulysses_degree() > 0 && ranks % next.attention().ulysses_degree() != 0)
          next.mutable_attention()->set_ulysses_degree(1);
        if (next.attention().inner_ring() > 0 && ranks % next.attention().inner_ring() != 0)
          next.mutable_attention()->set_inner_ring(1);
      });
    }
    with([&](proto::FuzzCase& next) { next.mutable_attention()->set_mesh(str("cp=", mesh.size())); });
    with([](proto::FuzzCase& next) {
      next.mutable_attention()->set_q_heads(1);
      next.mutable_attention()->set_kv_heads(1);
      if (next.attention().has_ulysses_degree()) next.mutable_attention()->set_ulysses_degree(1);
    });
    const std::int64_t kv = job.has_kv_heads() ? job.kv_heads() : job.q_heads();
    for (const std::int64_t group : smaller(job.q_heads() / std::max<std::int64_t>(kv, 1), 1)) {
      with([&](proto::FuzzCase& next) { next.mutable_attention()->set_q_heads(kv * group); });
    }
    for (const std::int64_t heads : smaller(kv, 1)) {
      with([&](proto::FuzzCase& next) {
        next.mutable_attention()->set_q_heads(job.q_heads() / kv * heads);
        next.mutable_attention()->set_kv_heads(heads);
      });
    }
    lengths(job);
    for (const char* field : {"batch", "head_dim", "v_head_dim", "window", "ulysses_degree", "inner_ring"})
      less(kJob, field, 1);
    for (const char* balance : {"contiguous", "head_tail", "striped:1", "cost:4"}) {
      if (job.balance() == balance) break;
      with([&](proto::FuzzCase& next) { next.mutable_attention()->set_balance(balance); });
    }
    if (job.strategy() != "ring" && job.strategy() != "all_gather") {
      with([](proto::FuzzCase& next) {
        auto& changed = *next.mutable_attention();
        changed.set_strategy("ring");
        changed.clear_ulysses_degree(), changed.clear_inner_ring(), changed.clear_axis_order();
      });
    }
    with([](proto::FuzzCase& next) { next.mutable_attention()->clear_seed(); });
  }

  // Rows of queries and of keys, and documents that end within them.
  void lengths(const proto::Attention& job) {
    const auto cut = [&](proto::FuzzCase& next, std::int64_t kv_len) {
      auto& changed = *next.mutable_attention();
      if (changed.documents().empty()) return;
      std::vector<std::string> entries;
      for (const std::string& entry : words(changed.documents(), ';')) {
        std::vector<std::int64_t> ends = parse_ints(entry, '/', "document");
        for (std::int64_t& end : ends) end = std::min(end, kv_len);
        ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
        if (ends.size() == 1) ends.push_back(kv_len);
        entries.push_back(join(ends, "/"));
      }
      changed.set_documents(join(entries, ";"));
    };
    for (const std::int64_t rows : smaller(job.seq_len(), 1)) {
      with([&](proto::FuzzCase& next) {
        next.mutable_attention()->set_seq_len(rows);
        if (!job.has_kv_len()) cut(next, rows);
      });
    }
    if (job.has_kv_len()) {
      for (const std::int64_t rows : smaller(job.kv_len(), 1)) {
        with([&](proto::FuzzCase& next) {
          next.mutable_attention()->set_kv_len(rows);
          cut(next, rows);
        });
      }
    }
    const std::vector<std::string> entries = words(job.documents(), ';');
    if (entries.size() > 1)
      with([&](proto::FuzzCase& next) { next.mutable_attention()->set_documents(entries.front()); });
    if (entries.size() != 1) return;
    const std::vector<std::int64_t> ends = parse_ints(entries.front(), '/', "document");
    for (std::size_t i = 1; i + 1 < ends.size(); ++i) {
      with([&](proto::FuzzCase& next) {
        std::vector<std::int64_t> fewer = ends;
        fewer.erase(fewer.begin() + static_cast<std::ptrdiff_t>(i));
        next.mutable_attention()->set_documents(join(fewer, "/"));
      });
    }
  }

  // ---- recurrences ----

  void recurrence() {
    constexpr auto kJob = &proto::FuzzCase::mutable_recurrence;
    const proto::Recurrence job = case_.recurrence();
    without(kJob, {"target", "backward", "documents", "batch", "scale", "dtype", "balance", "value_heads",
                   "v_head_dim", "seed"});
    const Mesh mesh = Mesh::parse(job.mesh());
    for (const std::int64_t ranks : smaller(mesh.size(), 1))
      with([&](proto::FuzzCase& next) { next.mutable_recurrence()->set_mesh(str("cp=", ranks)); });
    with([&](proto::FuzzCase& next) { next.mutable_recurrence()->set_mesh(str("cp=", mesh.size())); });
    if (job.documents().empty()) less(kJob, "seq_len", 1);
    less(kJob, "head_dim", 1);
    if (job.has_v_head_dim()) less(kJob, "v_head_dim", 1);
    with([](proto::FuzzCase& next) {
      next.mutable_recurrence()->set_key_heads(1);
      next.mutable_recurrence()->clear_value_heads();
    });
    for (const char* scan : {"sequential", "all_gather"})
      with([&](proto::FuzzCase& next) { next.mutable_recurrence()->set_strategy(scan); });
  }

  // ---- steps of models ----

  void model() {
    step(&proto::FuzzCase::mutable_model, 1, 1);
    without(&proto::FuzzCase::mutable_model, {"dtype"});
  }

  void proof() {
    // A norm of one column has no gradient but what its eps makes, which is lost in roundings; and one token
    // predicts none.
    constexpr std::int64_t kLeastWidth = 6, kLeastRows = 2;
    step([](proto::FuzzCase& of) { return of.mutable_proof()->mutable_step(); }, kLeastWidth, kLeastRows);
    // In f32 nothing hangs on a rounding; without a word it is bf16.
    with([](proto::FuzzCase& next) { next.mutable_proof()->mutable_step()->set_dtype(proto::f32); });
    without(&proto::FuzzCase::mutable_proof, {"seed", "ignored", "without_label"});
  }

  // `job` gives the step of a case.
  template <class Get>
  void step(const Get& job, std::int64_t least_width, std::int64_t least_rows) {
    const std::vector<std::string> parts = words(std::invoke(job, case_)->layout(), ',');
    for (std::size_t i = 0; i < parts.size(); ++i) {
      with([&](proto::FuzzCase& next) {
        std::vector<std::string> fewer = parts;
        fewer.erase(fewer.begin() + static_cast<std::ptrdiff_t>(i));
        std::invoke(job, next)->set_layout(join(fewer, ","));
      });
    }
    without(job, {"rotary_share", "out_bias", "qk_norm_behind_rotary", "shared_gate", "expert_biases",
                  "weighs_expert_inputs", "activation_limit", "temperature", "rotary_scaling", "window_theta",
                  "score_scale", "moves_corrections", "corrects_scores", "router_groups"});
    with([&](proto::FuzzCase& next) {
      for (auto& kind : *std::invoke(job, next)->mutable_kinds()) kind.clear_no_rotary();
    });
    without(job, {"no_norms_before", "qk_norm_of_all_heads", "sinks", "softcap", "prediction_layers",
                  "parallel_blocks", "norm_centered", "logit_scale"});
    without(job, {"tied_embeddings", "qkv_bias", "qk_norm", "norms_behind", "gated_attention", "ungated_mlp",
                  "window", "kinds", "shared_expert", "optimizer", "gradient_dtype", "kv_dtype", "documents",
                  "expert_imbalance", "attention_dropout"});
    with([&](proto::FuzzCase& next) {
      proto::ModelStep& changed = *std::invoke(job, next);
      changed.set_documents(changed.documents().substr(0, changed.documents().find(';')));
    });
    with([&](proto::FuzzCase& next) {  // documents of another length are no case
      proto::ModelStep& changed = *std::invoke(job, next);
      if (changed.documents().empty() || changed.seq_len() < 3) return;
      changed.set_documents(str("0/1/", changed.seq_len()));
    });
    with([&](proto::FuzzCase& next) {
      std::invoke(job, next)->clear_experts(), std::invoke(job, next)->clear_top_k(),
          std::invoke(job, next)->clear_expert_intermediate(), std::invoke(job, next)->clear_shared_expert();
      for (auto& kind : *std::invoke(job, next)->mutable_kinds()) kind.clear_dense();
    });
    with([&](proto::FuzzCase& next) {
      proto::ModelStep& changed = *std::invoke(job, next);
      changed.clear_latent_kv_rank(), changed.clear_latent_q_rank(), changed.clear_latent_rope_dim(),
          changed.clear_latent_v_head_dim();
    });
    with([&](proto::FuzzCase& next) {
      proto::ModelStep& changed = *std::invoke(job, next);
      changed.clear_recurrence_value_heads(), changed.clear_recurrence_key_heads();
      changed.clear_recurrence_key_dim(), changed.clear_recurrence_value_dim();
      changed.clear_recurrence_convolution(), changed.clear_recurrence_decay();
      for (auto& kind : *changed.mutable_kinds()) kind.clear_recurrence();
    });
    with([&](proto::FuzzCase& next) {
      proto::ModelStep& changed = *std::invoke(job, next);
      changed.clear_convolution_taps(), changed.clear_convolution_bias();
      for (auto& kind : *changed.mutable_kinds()) kind.clear_convolution();
    });
    with([&](proto::FuzzCase& next) {
      for (auto& kind : *std::invoke(job, next)->mutable_kinds()) kind.clear_no_mixer(), kind.clear_no_mlp();
    });
    for (const char* field : {"layers", "global_batch", "q_heads", "kv_heads"}) less(job, field, 1);
    if (std::invoke(job, case_)->documents().empty()) less(job, "seq_len", least_rows);
    for (const char* field : {"hidden", "head_dim", "intermediate", "vocab"}) less(job, field, least_width);
  }

  // ---- flows ----

  void flows() {
    const proto::Flows job = case_.flows();
    for (int i = 0; i < job.flows_size(); ++i) {
      with([&](proto::FuzzCase& next) { next.mutable_flows()->mutable_flows()->DeleteSubrange(i, 1); });
    }
    for (int link = 0; link < job.capacities_size(); ++link) without_link(link);
    for (int i = 0; i < job.flows_size(); ++i) {
      const auto change = [&](const auto& set) {
        with([&](proto::FuzzCase& next) { set(*next.mutable_flows()->mutable_flows(i)); });
      };
      using Flow = proto::Flows::Flow;
      change([](Flow& flow) { flow.clear_change_ns(), flow.clear_then_limit(); });
      change([](Flow& flow) { flow.clear_begin_ns(); });
      change([](Flow& flow) { flow.clear_limit(); });
      change([](Flow& flow) { flow.set_bytes(1); });
    }
  }

  // And of all paths; those behind it get new numbers.
  void without_link(int link) {
    with([&](proto::FuzzCase& next) {
      auto& capacities = *next.mutable_flows()->mutable_capacities();
      capacities.erase(capacities.begin() + link);
      for (proto::Flows::Flow& flow : *next.mutable_flows()->mutable_flows()) {
        const std::vector<std::int32_t> links(flow.links().begin(), flow.links().end());
        flow.clear_links();
        for (const std::int32_t other : links) {
          if (other != link) flow.add_links(other > link ? other - 1 : other);
        }
      }
    });
  }

  // ---- programs ----

  // Half of the items left out, then each by itself; what is left keeps its number, and so its draw.
  void program() {
    constexpr auto kJob = &proto::FuzzCase::mutable_program;
    const proto::Program job = case_.program();
    std::vector<std::int32_t> left;
    for (std::int32_t i = 0; i < job.items(); ++i) {
      if (std::find(job.without().begin(), job.without().end(), i) == job.without().end()) left.push_back(i);
    }
    const auto leave_out = [&](std::size_t begin, std::size_t end) {
      with([&](proto::FuzzCase& next) {
        for (std::size_t i = begin; i < end; ++i) next.mutable_program()->add_without(left[i]);
      });
    };
    for (std::size_t part = left.size() / 2; part > 0; part /= 2) {
      for (std::size_t begin = 0; begin < left.size(); begin += part)
        leave_out(begin, std::min(begin + part, left.size()));
    }
    const auto end_at = [&](std::int64_t items) {
      with([&](proto::FuzzCase& next) {
        proto::Program& fewer = *next.mutable_program();
        fewer.set_items(static_cast<std::int32_t>(items));
        fewer.clear_without();
        for (const std::int32_t item : job.without()) {
          if (item < items) fewer.add_without(item);
        }
      });
    };
    end_at(left.empty() ? 0 : left.back() + 1);
    for (const std::int64_t items : smaller(job.items(), 0)) end_at(items);
    for (const char* field : {"ranks", "streams", "buffers"}) less(kJob, field, 1);
    if (job.ranks() > 1) {
      with([](proto::FuzzCase& next) {
        proto::Program& fewer = *next.mutable_program();
        fewer.set_ranks(fewer.ranks() - 1);
        fewer.set_first_rank(fewer.first_rank() + 1);
      });
    }
    less(kJob, "iterations", 0);
    without(kJob, {"flaw", "edges", "place", "first_rank"});
    // Of small places, so that the file is read with ease.
    for (std::int64_t place = 0; place < std::min<std::int64_t>(static_cast<std::int64_t>(job.place()), 24);
         ++place)
      with([&](proto::FuzzCase& next) {
        next.mutable_program()->set_place(static_cast<std::uint64_t>(place));
      });
  }

  proto::FuzzCase case_;
  std::vector<proto::FuzzCase> cases_;
};

}  // namespace

std::vector<proto::FuzzCase> simpler_cases(const proto::FuzzCase& fuzz_case) {
  return Simpler(fuzz_case).list();
}

proto::FuzzCase shrink(proto::FuzzCase fuzz_case, const ShrinkOptions& options) {
  for (bool found = true; found;) {
    found = false;
    for (const proto::FuzzCase& next : simpler_cases(fuzz_case)) {
      if (std::chrono::steady_clock::now() >= options.deadline || options.stopped()) return fuzz_case;
      std::optional<proto::FuzzCase> failing = options.still_fails(next);
      if (!failing) continue;
      fuzz_case = *std::move(failing);
      found = true;
      break;
    }
  }
  return fuzz_case;
}

}  // namespace cp::sim
