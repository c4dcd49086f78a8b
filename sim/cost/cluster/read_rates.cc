#include "sim/cost/cluster/read_rates.h"

#include <cstddef>
#include <set>

#include "shared/base/error.h"
#include "sim/cost/cluster/provenance_proto.h"
#include "sim/cost/cluster/rate_ranges.h"
#include "sim/cost/cluster/read_serving_rates.h"
#include "sim/cost/presets/embedded.h"

namespace cp::sim {
namespace {

constexpr std::string_view kRatesKind = "preset of rates";
constexpr Range kKeys{1e-3, 1e7}, kKeysOrNone{1e-3, 1e7, true}, kPasses{0, 1e3}, kNone{0, 1e7};

template <class Visit>
void visit_resident(const Resident& resident, Visit&& visit) {
  visit("resident_mib", resident.mib, Range{0, 1e6});
  if (resident.mib != 0) visit("resident_speed", resident.speed, Range{1, 1e3});
}

// visit(name, number, range), for each number of a rate.
template <class Visit>
void for_each_number(const AttentionRate& rate, Visit&& visit) {
  visit("head_dim", double{1} * rate.head_dim, Range{1, 1 << 16});
  visit("floor_us", rate.floor_us, kMicroseconds);
  visit("tflops", rate.tflops, kTflops);
  visit("startup_keys", rate.startup_keys, kKeys);
  visit("full_startup_keys", rate.full_startup_keys, kKeysOrNone);
  visit("window_startup_keys", rate.window_startup_keys, kKeysOrNone);
  visit("tile_rows", rate.tile_rows, Range{1, 1 << 16});
  visit("blend", rate.blend, kBlend);
  visit("cache_passes", rate.cache_passes, kPasses);
  visit("cache_us", rate.cache_us, kPasses);
  visit_resident(rate.resident, visit);
}
template <class Visit>
void for_each_number(const DecodeRate& rate, Visit&& visit) {
  visit("head_dim", double{1} * rate.head_dim, Range{1, 1 << 16});
  visit("floor_us", rate.floor_us, kMicroseconds);
  visit("startup_keys", rate.startup_keys, kKeysOrNone);
  visit("memory_share", rate.memory_share, kShare);
  visit("widest_group", double{1} * rate.widest_group, Range{0, 1 << 16});
  if (rate.widest_group != 0) visit("wide_passes", rate.wide_passes, Range{1, 1e3});
  visit_resident(rate.resident, visit);
}
template <class Visit>
void for_each_number(const ProductRate& rate, Visit&& visit) {
  visit("floor_us", rate.floor_us, kMicroseconds);
  visit("tflops", rate.tflops, kTflops);
  visit("startup_k", rate.startup_k, Range{0, 1e7});
  visit("blend", rate.blend, kBlend);
  visit("memory_share", rate.memory_share, kShare);
  visit("sustained_share", rate.sustained_share, kShare);
  visit("sustained_us", rate.sustained_us, kNone);
}

template <class Visit>
void for_each_number(const ExpertRate& rate, Visit&& visit) {
  visit("floor_us", rate.floor_us, kMicroseconds);
  visit("tflops", rate.tflops, kTflops);
  visit("startup_rows", rate.startup_rows, kNone);
  visit("startup_k", rate.startup_k, kNone);
  visit("blend", rate.blend, kBlend);
  visit("memory_share", rate.memory_share, kShare);
  visit("row_passes", rate.row_passes, kPasses);
}
template <class Visit>
void for_each_number(const LatentRate& rate, Visit&& visit) {
  visit("qk_dim", double{1} * rate.qk_dim, Range{1, 1 << 16});
  visit("v_dim", double{1} * rate.v_dim, Range{1, 1 << 16});
  visit("floor_us", rate.floor_us, kMicroseconds);
  visit("tflops", rate.tflops, kTflops);
  visit("startup_keys", rate.startup_keys, rate.decode ? kKeysOrNone : kKeys);
  visit("tile_rows", rate.tile_rows, Range{1, 1 << 16});
  visit("blend", rate.blend, kBlend);
  if (rate.decode) visit("memory_share", rate.memory_share, kShare);
  visit("cache_passes", rate.cache_passes, kPasses);
}
template <class Visit>
void for_each_number(const LinearRate& rate, Visit&& visit) {
  visit("floor_us", rate.floor_us, kMicroseconds);
  visit("token_us", rate.token_us, kNone);
  visit("tile_rows", rate.tile_rows, Range{1, 1 << 16});
  visit("blend", rate.blend, kBlend);
  visit("memory_share", rate.memory_share, kShare);
  visit("chains_at_once", rate.chains_at_once, Range{1, 1 << 16});
  visit("stage_bytes", rate.stage_bytes, kNone);
  visit_resident(rate.resident, visit);
}

// What tells rates of one list apart.
std::string key_of(const AttentionRate& rate) {
  return str(rate.kernel, rate.backward ? " backward" : " forward", " of head_dim ", rate.head_dim,
             rate.bits == 16 ? "" : " in 8 bits");
}
std::string key_of(const DecodeRate& rate) {
  return str(rate.kernel, " of head_dim ", rate.head_dim, " and ", rate.cache_bits, " bits");
}
std::string key_of(const ProductRate& rate) { return str(rate.bits, " bits"); }
std::string key_of(const ExpertRate& rate) { return str(rate.kernel, " in ", rate.bits, " bits"); }
std::string key_of(const LatentRate& rate) {
  return str(rate.kernel, rate.decode ? " decode" : " context", " of qk_dim ", rate.qk_dim,
             " with a cache of ", rate.cache_bits, " bits");
}
std::string key_of(const LinearRate& rate) { return str(rate.kernel, rate.decode ? " decode" : " context"); }

const char* example_of(const AttentionRate&) { return "fa3"; }
const char* example_of(const DecodeRate&) { return "fa3"; }
const char* example_of(const ExpertRate&) { return "triton"; }
const char* example_of(const LatentRate&) { return "trtllm"; }
const char* example_of(const LinearRate&) { return "gated_delta"; }

template <class Rate>
void check_all(const std::vector<Rate>& rates, const char* list, std::vector<FieldError>& errors) {
  std::set<std::string> known;
  for (std::size_t i = 0; i < rates.size(); ++i) {
    const Rate& rate = rates[i];
    const std::string field = str(list, "[", i, "]");
    const auto check = [&](const char* name, double value, const Range& range) {
      const std::string error = range_error(value, range);
      if (!error.empty()) errors.push_back({str(field, ".", name), error});
    };
    for_each_number(rate, check);
    check("left_out.median", rate.left_out.median, kError);
    check("left_out.p90", rate.left_out.p90, kError);
    if constexpr (requires { rate.kernel; }) {
      if (rate.kernel.empty())
        errors.push_back({field, str("has no kernel; add, for example, kernel: \"", example_of(rate), "\"")});
    }
    if (!known.insert(key_of(rate)).second)
      errors.push_back({field, str("is a second rate of ", key_of(rate), "; keep one")});
  }
}

template <class Messages>
void check_provenance(const Messages& rates, const char* list, std::vector<FieldError>& errors) {
  for (int i = 0; i < rates.size(); ++i) {
    const std::string error = provenance_error(rates[i]);
    if (!error.empty()) errors.push_back({str(list, "[", i, "]"), error});
  }
}

LeftOut left_out_of(const proto::LeftOut& message) {
  return {message.rows(), message.median(), message.p90()};
}
void write(const LeftOut& left_out, proto::LeftOut& message) {
  message.set_rows(left_out.rows);
  message.set_median(left_out.median), message.set_p90(left_out.p90);
}
template <class Message>
void write(const Resident& resident, Message& message) {
  if (resident.mib == 0) return;
  message.set_resident_mib(resident.mib), message.set_resident_speed(resident.speed);
}
double blend_of(double value) { return value == 0 ? 1 : value; }
int bits_of(int value) { return value == 0 ? 16 : value; }

void check_bits(const std::string& field, int bits, std::vector<FieldError>& errors) {
  if (bits != 16 && bits != 8) errors.push_back({field, str(bits, " is neither 16 nor 8")});
}
// 8 bits are at most twice as fast.
void check_peak(const std::string& field, double tflops, int bits, const Rates& rates,
                std::vector<FieldError>& errors) {
  const double peak = rates.tflops_16 * 16 / bits;
  if (tflops <= peak) return;
  errors.push_back({field, bits == 16 ? str(tflops, " is above tflops_16, ", peak)
                                      : str(tflops, " is above twice tflops_16, ", peak)});
}

}  // namespace

std::vector<FieldError> rates_errors(const Rates& rates) {
  std::vector<FieldError> errors;
  const std::string peak = range_error(rates.tflops_16, kTflops);
  if (!peak.empty()) errors.push_back({"tflops_16", peak});
  const std::string memory = range_error(rates.hbm_gbps, kTflops);
  if (!memory.empty()) errors.push_back({"hbm_gbps", memory});
  if (rates.sms < 1) errors.push_back({"sms", str(rates.sms, " is not in [1, ...)")});
  check_all(rates.attention, "attention", errors);
  check_all(rates.decode, "decode", errors);
  check_all(rates.product, "product", errors);
  add_serving_errors(rates, errors);
  check_all(rates.experts, "experts", errors);
  check_all(rates.latent, "latent", errors);
  check_all(rates.linear, "linear", errors);
  for (std::size_t i = 0; i < rates.product.size(); ++i)
    check_bits(str("product[", i, "].bits"), rates.product[i].bits, errors);
  for (std::size_t i = 0; i < rates.attention.size(); ++i) {
    const AttentionRate& rate = rates.attention[i];
    check_bits(str("attention[", i, "].bits"), rate.bits, errors);
    if (rate.backward && rate.bits == 8)
      errors.push_back({str("attention[", i, "].bits"), "of a backward pass; only forward is known in 8"});
    check_peak(str("attention[", i, "].tflops"), rate.tflops, rate.bits == 8 ? 8 : 16, rates, errors);
  }
  for (std::size_t i = 0; i < rates.experts.size(); ++i) {
    const ExpertRate& rate = rates.experts[i];
    check_bits(str("experts[", i, "].bits"), rate.bits, errors);
    check_peak(str("experts[", i, "].tflops"), rate.tflops, rate.bits == 8 ? 8 : 16, rates, errors);
  }
  for (std::size_t i = 0; i < rates.latent.size(); ++i) {
    const LatentRate& rate = rates.latent[i];
    check_bits(str("latent[", i, "].cache_bits"), rate.cache_bits, errors);
    check_peak(str("latent[", i, "].tflops"), rate.tflops, rate.cache_bits == 8 ? 8 : 16, rates, errors);
  }
  return errors;
}

std::vector<FieldError> provenance_errors(const proto::Rates& rates) {
  std::vector<FieldError> errors;
  check_provenance(rates.attention(), "attention", errors);
  check_provenance(rates.decode(), "decode", errors);
  check_provenance(rates.product(), "product", errors);
  check_provenance(rates.experts(), "experts", errors);
  check_provenance(rates.latent(), "latent", errors);
  check_provenance(rates.linear(), "linear", errors);
  check_provenance(rates.stored_product(), "stored_product", errors);
  check_provenance(rates.all_reduce(), "all_reduce", errors);
  return errors;
}

Rates rates_of(const proto::Rates& message) {
  Rates rates;
  rates.gpu = message.gpu(), rates.tflops_16 = message.tflops_16(), rates.hbm_gbps = message.hbm_gbps(),
  rates.sms = message.sms();
  for (const proto::AttentionRate& rate : message.attention()) {
    rates.attention.push_back({rate.kernel(), rate.backward(), rate.head_dim(), bits_of(rate.bits()),
                               rate.floor_us(), rate.tflops(), rate.startup_keys(), rate.full_startup_keys(),
                               rate.window_startup_keys(), rate.tile_rows(), rate.shared_tiles(),
                               blend_of(rate.blend()), rate.cache_passes(), rate.cache_us(),
                               Resident{rate.resident_mib(), rate.resident_speed()}, provenance_of(rate),
                               left_out_of(rate.left_out())});
  }
  for (const proto::DecodeRate& rate : message.decode()) {
    rates.decode.push_back({rate.kernel(), rate.head_dim(), rate.floor_us(), rate.startup_keys(),
                            rate.memory_share(), rate.widest_group(), rate.wide_passes(),
                            Resident{rate.resident_mib(), rate.resident_speed()}, provenance_of(rate),
                            left_out_of(rate.left_out()), bits_of(rate.cache_bits())});
  }
  take_serving_rates(message, rates);
  for (const proto::ProductRate& rate : message.product()) {
    rates.product.push_back({rate.bits(), rate.floor_us(), rate.tflops(), rate.startup_k(),
                             blend_of(rate.blend()), rate.memory_share(), blend_of(rate.sustained_share()),
                             rate.sustained_us(), provenance_of(rate), left_out_of(rate.left_out())});
  }
  for (const proto::ExpertRate& rate : message.experts()) {
    rates.experts.push_back({rate.kernel(), bits_of(rate.bits()), rate.floor_us(), rate.tflops(),
                             rate.startup_rows(), rate.startup_k(), blend_of(rate.blend()),
                             rate.memory_share(), rate.row_passes(), rate.all_rows(), provenance_of(rate),
                             left_out_of(rate.left_out())});
  }
  for (const proto::LatentRate& rate : message.latent()) {
    rates.latent.push_back({rate.kernel(), rate.decode(), bits_of(rate.cache_bits()), rate.qk_dim(),
                            rate.v_dim(), rate.floor_us(), rate.tflops(), rate.startup_keys(),
                            rate.tile_rows(), blend_of(rate.blend()), rate.memory_share(),
                            rate.cache_passes(), provenance_of(rate), left_out_of(rate.left_out())});
  }
  for (const proto::LinearRate& rate : message.linear()) {
    rates.linear.push_back({rate.kernel(), rate.decode(), rate.floor_us(), rate.token_us(), rate.tile_rows(),
                            blend_of(rate.blend()), rate.memory_share(), blend_of(rate.chains_at_once()),
                            rate.stage_bytes(), Resident{rate.resident_mib(), rate.resident_speed()},
                            provenance_of(rate), left_out_of(rate.left_out())});
  }
  return rates;
}

proto::Rates message_of(const Rates& rates) {
  proto::Rates message;
  message.set_gpu(rates.gpu), message.set_tflops_16(rates.tflops_16), message.set_hbm_gbps(rates.hbm_gbps),
      message.set_sms(rates.sms);
  for (const AttentionRate& rate : rates.attention) {
    proto::AttentionRate& out = *message.add_attention();
    out.set_kernel(rate.kernel), out.set_backward(rate.backward), out.set_head_dim(rate.head_dim);
    if (rate.bits != 16) out.set_bits(rate.bits);
    out.set_floor_us(rate.floor_us), out.set_tflops(rate.tflops), out.set_startup_keys(rate.startup_keys);
    out.set_full_startup_keys(rate.full_startup_keys), out.set_window_startup_keys(rate.window_startup_keys);
    out.set_tile_rows(rate.tile_rows), out.set_shared_tiles(rate.shared_tiles), out.set_blend(rate.blend);
    out.set_cache_passes(rate.cache_passes), out.set_cache_us(rate.cache_us);
    write_provenance(rate.provenance, out);
    write(rate.resident, out);
    write(rate.left_out, *out.mutable_left_out());
  }
  for (const DecodeRate& rate : rates.decode) {
    proto::DecodeRate& out = *message.add_decode();
    out.set_kernel(rate.kernel), out.set_head_dim(rate.head_dim), out.set_floor_us(rate.floor_us);
    out.set_startup_keys(rate.startup_keys), out.set_memory_share(rate.memory_share);
    write(rate.resident, out);
    if (rate.widest_group != 0)
      out.set_widest_group(rate.widest_group), out.set_wide_passes(rate.wide_passes);
    write_provenance(rate.provenance, out);
    if (rate.cache_bits != 16) out.set_cache_bits(rate.cache_bits);
    write(rate.left_out, *out.mutable_left_out());
  }
  for (const ProductRate& rate : rates.product) {
    proto::ProductRate& out = *message.add_product();
    out.set_bits(rate.bits), out.set_floor_us(rate.floor_us), out.set_tflops(rate.tflops);
    out.set_startup_k(rate.startup_k), out.set_blend(rate.blend), out.set_memory_share(rate.memory_share);
    if (rate.sustained_us != 0)
      out.set_sustained_share(rate.sustained_share), out.set_sustained_us(rate.sustained_us);
    write_provenance(rate.provenance, out);
    write(rate.left_out, *out.mutable_left_out());
  }
  for (const ExpertRate& rate : rates.experts) {
    proto::ExpertRate& out = *message.add_experts();
    out.set_kernel(rate.kernel), out.set_bits(rate.bits), out.set_floor_us(rate.floor_us);
    out.set_tflops(rate.tflops), out.set_startup_rows(rate.startup_rows), out.set_startup_k(rate.startup_k);
    out.set_blend(rate.blend), out.set_memory_share(rate.memory_share), out.set_row_passes(rate.row_passes);
    out.set_all_rows(rate.all_rows);
    write_provenance(rate.provenance, out);
    write(rate.left_out, *out.mutable_left_out());
  }
  for (const LatentRate& rate : rates.latent) {
    proto::LatentRate& out = *message.add_latent();
    out.set_kernel(rate.kernel), out.set_decode(rate.decode), out.set_cache_bits(rate.cache_bits);
    out.set_qk_dim(rate.qk_dim), out.set_v_dim(rate.v_dim), out.set_floor_us(rate.floor_us);
    out.set_tflops(rate.tflops), out.set_startup_keys(rate.startup_keys), out.set_tile_rows(rate.tile_rows);
    out.set_blend(rate.blend), out.set_memory_share(rate.memory_share);
    out.set_cache_passes(rate.cache_passes);
    write_provenance(rate.provenance, out);
    write(rate.left_out, *out.mutable_left_out());
  }
  for (const LinearRate& rate : rates.linear) {
    proto::LinearRate& out = *message.add_linear();
    out.set_kernel(rate.kernel), out.set_decode(rate.decode), out.set_floor_us(rate.floor_us);
    out.set_token_us(rate.token_us), out.set_tile_rows(rate.tile_rows), out.set_blend(rate.blend);
    out.set_memory_share(rate.memory_share), out.set_chains_at_once(rate.chains_at_once);
    out.set_stage_bytes(rate.stage_bytes);
    write_provenance(rate.provenance, out);
    write(rate.resident, out);
    write(rate.left_out, *out.mutable_left_out());
  }
  write_serving_rates(rates, message);
  return message;
}

Rates read_rates(std::string_view text, std::string_view filename) {
  proto::Rates message;
  Rates rates;
  read_text(text, filename, kRatesKind, message, [&](const TextLocations& locations, TextErrors& errors) {
    rates = rates_of(message);
    std::vector<Source> sources;
    SourcedReader fields(message, locations, errors, sources);
    for (const FieldError& error : provenance_errors(message)) fields.fail(error.field, error.message);
    for (const FieldError& error : rates_errors(rates)) fields.fail(error.field, error.message);
  });
  return rates;
}

Rates find_rates(std::string_view name) {
  const EmbeddedText& preset = find_embedded(embedded_rates(), name, kRatesKind);
  return read_rates(preset.text, str(preset.name, ".txtpb"));
}

std::vector<std::string> rates_names() { return names_of(embedded_rates()); }

}  // namespace cp::sim
