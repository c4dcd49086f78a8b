#include "sim/cost/cluster/read_cluster.h"

#include <algorithm>
#include <map>
#include <type_traits>
#include <utility>

#include <google/protobuf/text_format.h>

#include "shared/base/error.h"
#include "sim/cost/cluster/cluster.pb.h"
#include "sim/cost/cluster/cluster_fields.h"
#include "sim/cost/cluster/inherit.h"
#include "sim/cost/cluster/provenance_proto.h"
#include "sim/cost/cluster/read_rates.h"
#include "sim/cost/presets/embedded.h"

namespace cp::sim {
namespace {

constexpr std::string_view kClusterKind = "cluster";

void drop_sources(std::vector<Source>& sources, std::string_view prefix) {
  std::erase_if(sources, [&](const Source& source) { return source.field.starts_with(prefix); });
}

proto::Cluster parse_preset(std::string_view name) {
  const EmbeddedText& preset = find_embedded(embedded_clusters(), name, kClusterKind);
  proto::Cluster message;
  read_text(preset.text, str(preset.name, ".txtpb"), kClusterKind, message);
  return message;
}

// A preset to borrow from. One that borrowed the same was not measured, and could borrow in a circle.
Cluster lender(const std::string& name, const proto::Borrowed& (proto::Cluster::*what)() const) {
  const proto::Cluster message = parse_preset(name);
  const proto::Borrowed& second_hand = (message.*what)();
  if (!second_hand.preset().empty()) {
    throw InvalidInput(
        str("'", name, "' borrowed this too; use '", second_hand.preset(), "', which has it of its own"));
  }
  return find_cluster(name);
}

std::vector<std::string> presets_with_attention() {
  std::vector<std::string> names;
  for (const std::string& name : cluster_names()) {
    if (parse_preset(name).attention_size() > 0) names.push_back(name);
  }
  return names;
}

void borrow_attention(const Cluster& from, const proto::Borrowed& borrowed, Cluster& cluster) {
  if (from.attention.empty()) {
    throw InvalidInput(str("'", from.name, "' has no attention curves to lend; use one of ",
                           join(presets_with_attention(), ", "),
                           ", or take its rates: rates { preset: ... }"));
  }
  const double ratio = cluster.gpu.tflops_16 / from.gpu.tflops_16,
               times = borrowed.times() == 0 ? 1 : borrowed.times();
  if (!(times > 0 && times <= 10))
    throw InvalidInput(str("times: ", times, " is out of range; use a factor above 0 and at most 10"));
  const double factor = ratio * times;
  const std::string text =
      str(borrowed.source(), " (", from.name, "'s times ", ratio, ", the ratio of tflops_16",
          times == 1 ? ")" : str(", and times ", times, ")"));
  for (const AttentionCurve& curve : from.attention) {
    const bool known = std::any_of(cluster.attention.begin(), cluster.attention.end(), [&](const auto& own) {
      return own.backward == curve.backward && own.causal == curve.causal && own.head_dim == curve.head_dim &&
             own.kernel == curve.kernel;
    });
    if (known) continue;
    std::vector<CurvePoint> points = curve.tflops.points();
    for (CurvePoint& point : points) point.y *= factor;
    set_source(cluster.sources,
               {str("attention[", cluster.attention.size(), "].tflops"), {Origin::borrowed, text}});
    cluster.attention.push_back(
        {curve.backward, curve.causal, curve.head_dim, Curve(std::move(points)), curve.kernel});
  }
}

void borrow_transfer(const Cluster& from, const proto::Borrowed& borrowed, Cluster& cluster) {
  const std::string& source = borrowed.source();
  const auto borrow = [&](const char* field, const Curve& theirs, Curve& ours, double their_link,
                          double our_link) {
    if (!ours.empty() || theirs.empty() || their_link == 0 || our_link == 0) return;
    ours = with_faster_links(theirs, our_link / their_link, our_link);
    set_source(cluster.sources, {field,
                                 {Origin::borrowed, str(source, " (", from.name, "'s with links ",
                                                        our_link / their_link, " times as fast)")}});
  };
  const auto network = [](const Cluster& c) { return c.network.nic_gbps / c.network.gpus_per_nic; };
  borrow("transfer.intra_node", from.transfer.intra_node, cluster.transfer.intra_node, from.node.nvlink_gbps,
         cluster.node.nvlink_gbps);
  borrow("transfer.inter_node", from.transfer.inter_node, cluster.transfer.inter_node, network(from),
         network(cluster));
}

class ClusterReader {
 public:
  ClusterReader(const proto::Cluster& message, const TextLocations& locations, TextErrors& errors)
      : message_(message), errors_(errors), fields_(message, locations, errors, cluster_.sources) {}

  Cluster read() {
    take_base();
    take_names();
    take_numbers();
    take_lists();
    for_each_curve(cluster_, [&](const std::string& field, Curve& curve) { fields_.read(field, curve); });
    if (errors_.empty() && !message_.like().empty()) take_inherited();
    take_rates();
    if (errors_.empty()) {
      take_borrowed("attention_of", &proto::Cluster::attention_of, borrow_attention);
      take_borrowed("transfer_of", &proto::Cluster::transfer_of, borrow_transfer);
    }
    if (errors_.empty()) {
      for (const FieldError& error : cluster_errors(cluster_)) fields_.fail(error.field, error.message);
    }
    sort_by_field(cluster_.sources);
    return std::move(cluster_);
  }

 private:
  void take_base() {
    if (message_.like().empty()) return;
    try {
      cluster_ = base_ = find_cluster(message_.like());
    } catch (const InvalidInput& error) {
      fields_.fail("like", error.what());
    }
  }

  // Curves that the file takes from another preset instead are not those of `like`.
  void take_inherited() {
    if (fields_.has("attention_of") && message_.attention_size() == 0) {
      cluster_.attention.clear();
      drop_sources(cluster_.sources, "attention[");
    }
    for (const auto& [field, curve] : {std::pair("transfer.intra_node", &cluster_.transfer.intra_node),
                                       std::pair("transfer.inter_node", &cluster_.transfer.inter_node)}) {
      if (!fields_.has("transfer_of") || fields_.has(field)) continue;
      *curve = {};
      drop_sources(cluster_.sources, field);
    }
    const auto given = [&](const std::string& field) {
      if (field == "collectives[0]") return message_.collectives_size() > 0;
      if (field == "attention[0]") return message_.attention_size() > 0;
      return fields_.has(field);
    };
    rescale_inherited(base_, given, cluster_);
  }

  void take_names() {
    if (!message_.name().empty()) cluster_.name = message_.name();
    if (!message_.gpu().name().empty()) cluster_.gpu.name = message_.gpu().name();
    if (message_.nodes() != 0) cluster_.nodes = message_.nodes();
  }

  void take_numbers() {
    std::map<std::string, std::vector<std::string>> missing;  // by the message that they are in
    for_each_number(cluster_, [&](const std::string& field, auto& number, const Range& range, Need need) {
      fields_.read(field, range, number);
      if (need == Need::optional || !message_.like().empty() || fields_.has(field)) return;
      const std::size_t dot = field.find('.');
      missing[field.substr(0, dot)].push_back(field.substr(dot + 1));
    });
    for (const auto& [group, names] : missing) {
      fields_.fail(group, str("lacks ", join(names, ", "), "; add each, for example ", names.front(),
                              " { value: 1 origin: published source: \"data sheet\" }, or all of a preset's: "
                              "like: \"generic\""));
    }
  }

  void take_lists() {
    if (message_.collectives_size() > 0) {
      cluster_.collectives.clear();
      drop_sources(cluster_.sources, "collectives[");
    }
    for (const proto::CollectiveCurve& curve : message_.collectives()) {
      cluster_.collectives.push_back({curve.operation(),
                                      curve.gpus(),
                                      curve.nodes() == 0 ? 1 : curve.nodes(),
                                      curve.channels_per_net_peer(),
                                      {}});
    }
    if (message_.attention_size() > 0) {
      cluster_.attention.clear();
      drop_sources(cluster_.sources, "attention[");
    }
    for (const proto::AttentionCurve& curve : message_.attention()) {
      cluster_.attention.push_back({curve.backward(),
                                    curve.causal(),
                                    curve.head_dim() == 0 ? 128 : curve.head_dim(),
                                    {},
                                    curve.kernel().empty() ? "fa2" : curve.kernel()});
    }
  }

  void take_rates() {
    if (!fields_.has("rates")) return;
    const proto::ClusterRates& rates = message_.rates();
    const std::string missing = provenance_error(rates);
    if (!missing.empty()) fields_.fail("rates", missing);
    if (rates.preset().empty() == !rates.has_own())
      return fields_.fail("rates", "needs either a preset, for example preset: \"h100-sxm\", or own { ... }");
    try {
      cluster_.rates = rates.has_own() ? rates_of(rates.own()) : find_rates(rates.preset());
    } catch (const InvalidInput& error) {
      return fields_.fail("rates", error.what());
    }
    if (rates.sms() != 0) cluster_.rates.sms = rates.sms();
    for (const FieldError& error : provenance_errors(rates.own()))
      fields_.fail(str("rates.own.", error.field), error.message);
    for (const FieldError& error : rates_errors(cluster_.rates))
      fields_.fail(str("rates.own.", error.field), error.message);
    Provenance provenance = provenance_of(rates);
    if (!rates.has_own()) provenance.source += str(": preset ", rates.preset());
    set_source(cluster_.sources, {"rates", std::move(provenance)});
  }

  template <class Borrow>
  void take_borrowed(const char* field, const proto::Borrowed& (proto::Cluster::*what)() const,
                     Borrow&& borrow) {
    if (!fields_.has(field)) return;
    const proto::Borrowed& borrowed = (message_.*what)();
    if (trim(borrowed.source()).empty()) {
      return fields_.fail(field, "has no source; add, for example, source: \"same die\"");
    }
    try {
      borrow(lender(borrowed.preset(), what), borrowed, cluster_);
    } catch (const InvalidInput& error) {
      fields_.fail(field, error.what());
    }
  }

  const proto::Cluster& message_;
  TextErrors& errors_;
  Cluster base_;  // that the file is like
  Cluster cluster_;
  SourcedReader fields_;
};

}  // namespace

Cluster read_cluster(std::string_view text, std::string_view filename) {
  proto::Cluster message;
  Cluster cluster;
  read_text(text, filename, kClusterKind, message, [&](const TextLocations& locations, TextErrors& errors) {
    cluster = ClusterReader(message, locations, errors).read();
  });
  return cluster;
}

Cluster find_cluster(const std::string& name_or_path, int nodes) {
  Cluster cluster;
  if (name_or_path.ends_with(".txtpb")) {
    cluster = read_cluster(read_text_file(name_or_path, kClusterKind), name_or_path);
  } else {
    const EmbeddedText& preset =
        find_embedded(embedded_clusters(), name_or_path, kClusterKind, ", or a file that ends in .txtpb");
    cluster = read_cluster(preset.text, str(preset.name, ".txtpb"));
  }
  if (nodes != 0) {
    cluster.nodes = nodes;
    validate_cluster(cluster);
  }
  return cluster;
}

std::vector<std::string> cluster_names() { return names_of(embedded_clusters()); }

std::string write_cluster(const Cluster& cluster) {
  proto::Cluster message;
  message.set_name(cluster.name);
  if (cluster.nodes != 1) message.set_nodes(cluster.nodes);
  if (!cluster.gpu.name.empty()) message.mutable_gpu()->set_name(cluster.gpu.name);
  SourcedWriter fields(message, cluster.sources);
  const Cluster defaults;
  std::map<std::string, double> unsaid;
  for_each_number(defaults, [&](const std::string& field, const auto& number, const Range&, Need need) {
    if (need == Need::optional) unsaid[field] = static_cast<double>(number);
  });
  for_each_number(cluster, [&](const std::string& field, const auto& number, const Range&, Need need) {
    const bool said = cluster.source_of(field) != nullptr;
    if (need == Need::optional && !said && unsaid[field] == static_cast<double>(number)) return;
    if constexpr (std::is_same_v<std::remove_cvref_t<decltype(number)>, bool>) {
      fields.write(field, number);
    } else {
      fields.write(field, static_cast<double>(number));
    }
  });
  for (const CollectiveCurve& curve : cluster.collectives) {
    proto::CollectiveCurve& out = *message.add_collectives();
    out.set_operation(curve.operation);
    out.set_gpus(curve.gpus);
    if (curve.nodes != 1) out.set_nodes(curve.nodes);
    out.set_channels_per_net_peer(curve.channels_per_net_peer);
  }
  for (const AttentionCurve& curve : cluster.attention) {
    proto::AttentionCurve& out = *message.add_attention();
    out.set_backward(curve.backward);
    out.set_causal(curve.causal);
    out.set_head_dim(curve.head_dim);
    out.set_kernel(curve.kernel);
  }
  for_each_curve(cluster, [&](const std::string& field, const Curve& curve) {
    if (!curve.empty()) fields.write(field, curve);
  });
  if (!cluster.rates.empty()) {
    const Source* source = cluster.source_of("rates");
    if (source == nullptr) throw InvalidInput("rates has no source; a preset says how each number is known");
    *message.mutable_rates()->mutable_own() = message_of(cluster.rates);
    write_provenance(source->provenance, *message.mutable_rates());
  }
  std::string text;
  google::protobuf::TextFormat::Printer printer;
  CP_INVARIANT(printer.PrintToString(message, &text), "a cluster of ", message.ByteSizeLong(), " bytes");
  return "# proto-file: sim/cost/cluster/cluster.proto\n# proto-message: cp.proto.Cluster\n\n" + text;
}

}  // namespace cp::sim
