#include "sim/cost/cluster/read_serving_rates.h"

#include <cstddef>
#include <set>
#include <string>
#include <utility>

#include "shared/base/text.h"
#include "sim/cost/cluster/provenance_proto.h"
#include "sim/cost/cluster/rate_ranges.h"

namespace cp::sim {
namespace {

constexpr Range kPerK{1e-9, 1e3, true}, kBytes{1, 1e15}, kTime{1e-3, 1e9};

void add_errors(const std::string& field, const StoredProductRate& rate, std::vector<FieldError>& errors) {
  const auto check = [&](const char* name, double value, const Range& range) {
    const std::string error = range_error(value, range);
    if (!error.empty()) errors.push_back({str(field, ".", name), error});
  };
  check("floor_us", rate.floor_us, kMicroseconds);
  check("tflops", rate.tflops, kTflops);
  check("us_per_k", rate.us_per_k, kPerK);
  check("memory_share", rate.memory_share, kShare);
  check("blend", rate.blend, kBlend);
  check("left_out.median", rate.left_out.median, kError);
  check("left_out.p90", rate.left_out.p90, kError);
  if (rate.bits != 16 && rate.bits != 8 && rate.bits != 4)
    errors.push_back({field + ".bits", str(rate.bits, " is none of 16, 8 and 4")});
}

// The lists have no places of their own: errors stand where the rate does.
void add_errors(const std::string& field, const AllReduceRate& rate, std::vector<FieldError>& errors) {
  const auto fail = [&](std::string message) { errors.push_back({field, std::move(message)}); };
  if (rate.kernel.empty()) fail("has no kernel; add, for example, kernel: \"trtllm\"");
  if (rate.gpus < 2) fail(str("gpus ", rate.gpus, ": one GPU reduces nothing; use 2 or more"));
  if (rate.bytes.empty() || rate.bytes.size() != rate.us.size()) {
    return fail(str("has ", rate.us.size(), " times but ", rate.bytes.size(),
                    " sizes; give one time for each size, and at least one"));
  }
  for (std::size_t i = 0; i < rate.bytes.size(); ++i) {
    const double bytes = rate.bytes[i], us = rate.us[i];
    const std::string size = range_error(bytes, kBytes), time = range_error(us, kTime);
    if (!size.empty()) fail(str("bytes: ", size));
    if (!time.empty()) fail(str("us: ", time));
    if (i == 0) continue;
    if (!(bytes > rate.bytes[i - 1])) {
      fail(str("bytes: ", bytes, " comes behind ", rate.bytes[i - 1], "; give the sizes in ascending order"));
    } else if (us < rate.us[i - 1]) {
      fail(str("us: ", us, " us for ", bytes, " bytes is less than the ", rate.us[i - 1], " us of ",
               rate.bytes[i - 1], ", and time does not fall as bytes grow; leave one of the two out"));
    }
  }
}

}  // namespace

void add_serving_errors(const Rates& rates, std::vector<FieldError>& errors) {
  for (std::size_t i = 0; i < rates.decode.size(); ++i) {
    const int bits = rates.decode[i].cache_bits;
    if (bits != 16 && bits != 8)
      errors.push_back({str("decode[", i, "].cache_bits"), str(bits, " is neither 16 nor 8")});
  }
  std::set<std::pair<int, bool>> products;
  for (std::size_t i = 0; i < rates.stored_product.size(); ++i) {
    const StoredProductRate& rate = rates.stored_product[i];
    const std::string field = str("stored_product[", i, "]");
    add_errors(field, rate, errors);
    if (!products.emplace(rate.bits, rate.few_rows).second)
      errors.push_back({field, str("is a second rate of ", rate.bits, " bits and ",
                                   rate.few_rows ? "few" : "many", " rows; keep one")});
  }
  std::set<std::pair<std::string, int>> reduces;
  for (std::size_t i = 0; i < rates.all_reduce.size(); ++i) {
    const AllReduceRate& rate = rates.all_reduce[i];
    const std::string field = str("all_reduce[", i, "]");
    add_errors(field, rate, errors);
    if (!reduces.emplace(rate.kernel, rate.gpus).second)
      errors.push_back(
          {field, str("is a second rate of ", rate.kernel, " on ", rate.gpus, " GPUs; keep one")});
  }
}

void take_serving_rates(const proto::Rates& message, Rates& rates) {
  for (const proto::StoredProductRate& rate : message.stored_product()) {
    rates.stored_product.push_back(
        {rate.bits(),
         rate.few_rows(),
         rate.floor_us(),
         rate.tflops(),
         rate.us_per_k(),
         rate.memory_share(),
         rate.blend() == 0 ? 1 : rate.blend(),
         provenance_of(rate),
         {rate.left_out().rows(), rate.left_out().median(), rate.left_out().p90()}});
  }
  for (const proto::AllReduceRate& rate : message.all_reduce()) {
    rates.all_reduce.push_back({rate.kernel(),
                                rate.gpus(),
                                {rate.bytes().begin(), rate.bytes().end()},
                                {rate.us().begin(), rate.us().end()},
                                provenance_of(rate)});
  }
}

void write_serving_rates(const Rates& rates, proto::Rates& message) {
  for (const StoredProductRate& rate : rates.stored_product) {
    proto::StoredProductRate& out = *message.add_stored_product();
    out.set_bits(rate.bits), out.set_few_rows(rate.few_rows), out.set_floor_us(rate.floor_us);
    out.set_tflops(rate.tflops), out.set_us_per_k(rate.us_per_k), out.set_memory_share(rate.memory_share);
    out.set_blend(rate.blend);
    write_provenance(rate.provenance, out);
    proto::LeftOut& left_out = *out.mutable_left_out();
    left_out.set_rows(rate.left_out.rows);
    left_out.set_median(rate.left_out.median), left_out.set_p90(rate.left_out.p90);
  }
  for (const AllReduceRate& rate : rates.all_reduce) {
    proto::AllReduceRate& out = *message.add_all_reduce();
    out.set_kernel(rate.kernel), out.set_gpus(rate.gpus);
    write_provenance(rate.provenance, out);
    out.mutable_bytes()->Assign(rate.bytes.begin(), rate.bytes.end());
    out.mutable_us()->Assign(rate.us.begin(), rate.us.end());
  }
}

}  // namespace cp::sim
