// How wide errors are that no table of the rate itself tells: what eight errors in ten are below, as a share
// of the time. What is measured is measured on other rows than those that an interval is for; `cpsim
// validate` prints the residuals beside each.
#pragma once

#include <algorithm>
#include <cmath>

namespace cp::sim::widths {

// A kernel's own curve on another machine with the same GPU: the worst of the four rows of one GPU in
// ring_flash_attention.csv, which curves of flash_attention_a800_h800.csv predict. The worst of four is what
// four fifths of further ones are below.
inline constexpr double kKernelElsewhere = 0.09;
// A curve of collectives or transfers on another machine of the same kind: systems that nccl_tests.csv and
// nccl_gpus.csv both have.
inline constexpr double kTransferElsewhere = 0.08;
// A head size from rates of two others: rates of sim/cost/presets/rates that are left out, those between two
// and those beyond them; of the latter by doublings of the size.
inline constexpr double kBetweenSizes = 0.18, kBeyondSizes = 0.50;
// What a host needs to issue a call: test rows of usp_short, which wait for it.
inline constexpr double kHost = 0.55;
// Assumed: taken over from another GPU or the other pass, estimated or assumed; and what nobody has a number
// of.
inline constexpr double kBorrowed = 0.22, kUnmeasured = 0.36;

// Standard deviations, of logarithms: what the model gets wrong of one strategy of attention and not of
// another (each of a pair's two; pairs of published rows of one system and size); of layouts of one kind
// (assumed); of the software as a whole (what nine in ten of the end-to-end rows, which set no number, are
// off).
inline constexpr double kOfStrategy = 0.035, kOfKind = 0.01, kOfAll = 0.07;

inline constexpr double kEightInTen = 1.2816;  // standard deviations each way

// From a table's median and ninetieth percentile. Errors of kernels have long tails: a median of 4 % goes
// with a ninetieth percentile of 15 %, where a normal distribution has 10 %. Between the two as a Weibull
// distribution of both has it.
inline double eight_in_ten(double median, double p90) {
  if (median <= 0 || p90 <= median) return p90;
  const auto beyond = [](double share) { return std::log(-std::log(1 - share)); };
  const double place = (beyond(0.8) - beyond(0.5)) / (beyond(0.9) - beyond(0.5));
  return median * std::pow(p90 / median, place);
}

// What was estimated or assumed is no surer than what was taken over from another GPU.
inline double by_hand(double width, bool second_hand) {
  return second_hand ? std::max(width, kBorrowed) : width;
}

inline double deviation(double eight_in_ten) { return std::log1p(eight_in_ten) / kEightInTen; }
// What is wrong for two reasons that have nothing to do with each other.
inline double both(double a, double b) { return std::hypot(a, b); }

}  // namespace cp::sim::widths
