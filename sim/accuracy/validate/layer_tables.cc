// Experts, latent attention and linear attention: rows that were left out of the fits of
// sim/cost/presets/rates, predicted by those rates.
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shared/base/error.h"
#include "shared/base/nearest.h"
#include "shared/base/text.h"
#include "sim/accuracy/validate/gpus_of_tables.h"
#include "sim/accuracy/validate/tables.h"

namespace cp::sim::detail {
namespace {

// The rate of a row's kernel, for which `fits` holds. Throws InvalidInput at the row where there is none,
// with the nearest kernel.
template <class Rate, class Fits>
const Rate& rate_of(const CsvRow& row, const std::vector<Rate>& rates, std::string_view what,
                    const Fits& fits) {
  const std::string& kernel = row.text("kernel");
  std::vector<std::string_view> known;
  for (const Rate& rate : rates) {
    if (!fits(rate)) continue;
    if (rate.kernel == kernel) return rate;
    known.push_back(rate.kernel);
  }
  if (known.empty()) throw InvalidInput(str(row.where(), ": ", row.text("gpu"), " has no rates of ", what));
  throw InvalidInput(str(row.where(), ": kernel: ", row.text("gpu"), " has no rate of ", what, " by '",
                         kernel, "'; the nearest one is '", nearest_name(kernel, known), "'; use one of ",
                         join(known, ", ")));
}

bool is_decode(const CsvRow& row) {
  const std::string& phase = row.text("phase");
  if (phase != "context" && phase != "decode")
    throw InvalidInput(str(row.where(), ": unknown phase '", phase, "'; use context or decode"));
  return phase == "decode";
}

// `wanted`: of the table's rows.
template <class Predict, class Words, class Wanted>
ValidationTable table_of(std::string_view name, const Predict& predict, const Words& words,
                         const Wanted& wanted) {
  ValidationTable table{.cluster = "each row's GPU", .software = "each row's kernel"};
  table.in_sample_rule = kLeftOutRule;
  GpusOfTables gpus;
  for (const CsvRow& csv : validation_table(name)) {
    if (!wanted(csv)) continue;
    ValidationRow row{.where = csv.where(),
                      .what = str(csv.text("gpu"), " ", csv.text("kernel"), " ", words(csv))};
    row.measured = csv.number("microseconds"), row.predicted = predict(csv, gpus.of(csv));
    table.rows.push_back(std::move(row));
  }
  table.target_median = 0.10;
  table.target_origin =
      "chosen when the table was made: what attention on rows left out is held to, and a quarter more";
  return table;
}

bool all_rows(const CsvRow&) { return true; }

}  // namespace

ValidationTable experts(int bits) {
  return table_of(
      "experts",
      [&](const CsvRow& row, const Cluster& cluster) {
        const ExpertRate& rate =
            rate_of(row, cluster.rates.experts, str("experts in ", row.text("bits"), " bits"),
                    [&](const ExpertRate& each) { return each.bits == bits; });
        return expert_layer_us(rate,
                               {row.number("tokens"), row.number("top_k"), row.number("rows"),
                                row.number("active"), row.number("hidden"), row.number("columns")},
                               cluster.gpu.hbm_gbps, 1);
      },
      [](const CsvRow& row) {
        return str(row.text("bits"), " bits, ", row.text("tokens"), " tokens, ", row.text("top_k"), " of ",
                   row.text("experts"), " experts over ", row.text("ep"), " ranks, ", row.text("hidden"),
                   " x ", row.text("columns"), ", ", row.text("skew"));
      },
      [&](const CsvRow& row) { return row.number("bits") == bits; });
}

ValidationTable latent_attention() {
  return table_of(
      "latent_attention",
      [](const CsvRow& row, const Cluster& cluster) {
        const bool decode = is_decode(row);
        const double cache_bits = row.number("cache_bits"), keys = row.number("keys");
        const LatentRate& rate = rate_of(
            row, cluster.rates.latent,
            str("latent attention, ", row.text("phase"), ", cache in ", row.text("cache_bits"), " bits"),
            [&](const LatentRate& each) { return each.decode == decode && each.cache_bits == cache_bits; });
        return latent_us(rate, {row.number("batch"), row.number("heads"), decode ? 1 : keys, keys},
                         cluster.rates.sms, cluster.gpu.hbm_gbps, 1);
      },
      [](const CsvRow& row) {
        return str(row.text("phase"), " ", row.text("batch"), " x ", row.text("keys"), ", ",
                   row.text("heads"), " heads, cache in ", row.text("cache_bits"), " bits");
      },
      all_rows);
}

ValidationTable linear_attention() {
  constexpr double kHeadDim = 128;  // of all rows, where channels = (2 key_heads + value_heads) x 128
  return table_of(
      "linear_attention",
      [](const CsvRow& row, const Cluster& cluster) {
        const bool decode = is_decode(row);
        const double batch = row.number("batch"), tokens = row.number("tokens");
        const LinearRate& rate =
            rate_of(row, cluster.rates.linear, str("linear attention, ", row.text("phase")),
                    [&](const LinearRate& each) { return each.decode == decode; });
        const LinearCall call = row.text("kernel").starts_with("convolution")
                                    ? convolution_call(batch, tokens, row.number("channels"))
                                    : gated_delta_call(batch, tokens, row.number("key_heads"),
                                                       row.number("value_heads"), kHeadDim);
        return linear_us(rate, call, cluster.rates.sms, cluster.gpu.hbm_gbps);
      },
      [](const CsvRow& row) {
        return str(row.text("phase"), " ", row.text("batch"), " x ", row.text("tokens"), ", ",
                   row.text("key_heads"), "/", row.text("value_heads"), " heads, ", row.text("channels"),
                   " channels");
      },
      all_rows);
}

}  // namespace cp::sim::detail
