#include "sim/cluster/read_rates.h"

#include <cstddef>
#include <set>

#include "shared/base/error.h"
#include "sim/cluster/read_serving_rates.h"
#include "sim/presets/embedded.h"

namespace cp::sim {
namespace {

constexpr std::string_view kKind = "preset of rates";
constexpr Range kShare{1e-6, 1}, kMicroseconds{1e-3, 1e6}, kKeys{1e-3, 1e7}, kKeysOrNone{1e-3, 1e7, true},
    kTflops{1e-6, 1e6}, kBlend{1, 100}, kPasses{0, 1e3}, kError{0, 1e3};

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
}
template <class Visit>
void for_each_number(const DecodeRate& rate, Visit&& visit) {
  visit("head_dim", double{1} * rate.head_dim, Range{1, 1 << 16});
  visit("floor_us", rate.floor_us, kMicroseconds);
  visit("startup_keys", rate.startup_keys, kKeysOrNone);
  visit("memory_share", rate.memory_share, kShare);
}
template <class Visit>
void for_each_number(const ProductRate& rate, Visit&& visit) {
  visit("floor_us", rate.floor_us, kMicroseconds);
  visit("tflops", rate.tflops, kTflops);
  visit("startup_k", rate.startup_k, Range{0, 1e7});
  visit("blend", rate.blend, kBlend);
  visit("memory_share", rate.memory_share, kShare);
}

// What tells rates of one list apart.
std::string key_of(const AttentionRate& rate) {
  return str(rate.kernel, rate.backward ? " backward" : " forward", " of head_dim ", rate.head_dim);
}
std::string key_of(const DecodeRate& rate) {
  return str(rate.kernel, " of head_dim ", rate.head_dim, " and ", rate.cache_bits, " bits");
}
std::string key_of(const ProductRate& rate) { return str(rate.bits, " bits"); }

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
      if (rate.kernel.empty()) errors.push_back({field, "has no kernel; add such as kernel: \"fa3\""});
    }
    if (rate.source.empty())
      errors.push_back(
          {field, "has no source; add such as source: \"measured by ...\" or \"estimate: why\""});
    if (!known.insert(key_of(rate)).second)
      errors.push_back({field, str("is a second rate of ", key_of(rate), "; keep one")});
  }
}

LeftOut left_out_of(const proto::LeftOut& message) {
  return {message.rows(), message.median(), message.p90()};
}
void write(const LeftOut& left_out, proto::LeftOut& message) {
  message.set_rows(left_out.rows);
  message.set_median(left_out.median), message.set_p90(left_out.p90);
}
double blend_of(double value) { return value == 0 ? 1 : value; }

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
  for (std::size_t i = 0; i < rates.product.size(); ++i) {
    const int bits = rates.product[i].bits;
    if (bits != 16 && bits != 8)
      errors.push_back({str("product[", i, "].bits"), str(bits, " is neither 16 nor 8")});
  }
  for (std::size_t i = 0; i < rates.attention.size(); ++i) {
    if (rates.attention[i].tflops > rates.tflops_16)
      errors.push_back({str("attention[", i, "].tflops"),
                        str(rates.attention[i].tflops, " is above tflops_16, ", rates.tflops_16)});
  }
  return errors;
}

Rates rates_of(const proto::Rates& message) {
  Rates rates;
  rates.gpu = message.gpu(), rates.tflops_16 = message.tflops_16(), rates.hbm_gbps = message.hbm_gbps(),
  rates.sms = message.sms();
  for (const proto::AttentionRate& rate : message.attention()) {
    rates.attention.push_back({rate.kernel(), rate.backward(), rate.head_dim(), rate.floor_us(),
                               rate.tflops(), rate.startup_keys(), rate.full_startup_keys(),
                               rate.window_startup_keys(), rate.tile_rows(), rate.shared_tiles(),
                               blend_of(rate.blend()), rate.cache_passes(), rate.cache_us(), rate.source(),
                               left_out_of(rate.left_out())});
  }
  for (const proto::DecodeRate& rate : message.decode()) {
    rates.decode.push_back({rate.kernel(), rate.head_dim(), rate.floor_us(), rate.startup_keys(),
                            rate.memory_share(), rate.source(), left_out_of(rate.left_out()),
                            rate.cache_bits() == 0 ? 16 : rate.cache_bits()});
  }
  take_serving_rates(message, rates);
  for (const proto::ProductRate& rate : message.product()) {
    rates.product.push_back({rate.bits(), rate.floor_us(), rate.tflops(), rate.startup_k(),
                             blend_of(rate.blend()), rate.memory_share(), rate.source(),
                             left_out_of(rate.left_out())});
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
    out.set_floor_us(rate.floor_us), out.set_tflops(rate.tflops), out.set_startup_keys(rate.startup_keys);
    out.set_full_startup_keys(rate.full_startup_keys), out.set_window_startup_keys(rate.window_startup_keys);
    out.set_tile_rows(rate.tile_rows), out.set_shared_tiles(rate.shared_tiles), out.set_blend(rate.blend);
    out.set_cache_passes(rate.cache_passes), out.set_cache_us(rate.cache_us), out.set_source(rate.source);
    write(rate.left_out, *out.mutable_left_out());
  }
  for (const DecodeRate& rate : rates.decode) {
    proto::DecodeRate& out = *message.add_decode();
    out.set_kernel(rate.kernel), out.set_head_dim(rate.head_dim), out.set_floor_us(rate.floor_us);
    out.set_startup_keys(rate.startup_keys), out.set_memory_share(rate.memory_share);
    out.set_source(rate.source);
    if (rate.cache_bits != 16) out.set_cache_bits(rate.cache_bits);
    write(rate.left_out, *out.mutable_left_out());
  }
  for (const ProductRate& rate : rates.product) {
    proto::ProductRate& out = *message.add_product();
    out.set_bits(rate.bits), out.set_floor_us(rate.floor_us), out.set_tflops(rate.tflops);
    out.set_startup_k(rate.startup_k), out.set_blend(rate.blend), out.set_memory_share(rate.memory_share);
    out.set_source(rate.source);
    write(rate.left_out, *out.mutable_left_out());
  }
  write_serving_rates(rates, message);
  return message;
}

Rates read_rates(std::string_view text, std::string_view filename) {
  proto::Rates message;
  Rates rates;
  read_text(text, filename, kKind, message, [&](const TextLocations& locations, TextErrors& errors) {
    rates = rates_of(message);
    std::vector<Source> sources;
    SourcedReader fields(message, locations, errors, sources);
    for (const FieldError& error : rates_errors(rates)) fields.fail(error.field, error.message);
  });
  return rates;
}

Rates find_rates(std::string_view name) {
  const EmbeddedText& preset = find_embedded(embedded_rates(), name, kKind);
  return read_rates(preset.text, str(preset.name, ".txtpb"));
}

std::vector<std::string> rates_names() { return names_of(embedded_rates()); }

}  // namespace cp::sim
