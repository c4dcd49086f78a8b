// The tables; each function predicts the rows of one. Internal to sim/accuracy/validate: validate.cc calls
// them.
#pragma once

#include <string>
#include <vector>

#include "sim/accuracy/validate/validate.h"
#include "sim/cost/cluster/software.h"

namespace cp::sim::detail {

// Returns the percentile `share` (0 .. 1) of ascending values. Between two values it is interpolated
// linearly, as numpy does. There must be at least one value.
double percentile(const std::vector<double>& ascending, double share);

// as_known takes attention kernels as the cluster's presets know them. rescaled makes them as fast as rows of
// the table say. The latter is no answer of a command; it shows which errors are left when the kernels are
// known exactly.
enum class Kernels { as_known, rescaled };

// `software` replaces the table's own profile if it is not null.
ValidationTable ring_attention(bool backward, const SoftwareProfile* software);  // blocks of 8 MB and more
ValidationTable ring_attention_short(const SoftwareProfile* software);           // smaller ones, both passes
ValidationTable ring_flash_attention(const SoftwareProfile* software, Kernels kernels);
ValidationTable usp(const SoftwareProfile* software, Kernels kernels);  // its rows of 131,072 tokens
// The rows of 512 and 8,192 tokens, which wait for the host.
ValidationTable usp_short(const SoftwareProfile* software);

// Attention in training, measured with cuDNN on one GPU; and context_parallel(), over a split sequence on
// "H100" or "B200".
ValidationTable attention_backward_hopper();
ValidationTable attention_backward_blackwell();
ValidationTable attention_forward_cudnn();
ValidationTable context_parallel(const std::string& gpu);

// Steps of whole models, and the memory that they take.
ValidationTable end_to_end();
ValidationTable end_to_end_memory();

// Rows that were left out of the fits of sim/cost/presets/rates. attention_of_gpu() has the forward attention
// of one of these GPUs; the others have rows of all GPUs. `bits` is 16 or 8.
ValidationTable attention_of_gpu(const std::string& gpu);
ValidationTable attention_without_mask();
ValidationTable decode_attention();
ValidationTable products(int bits);
ValidationTable attention_8();  // queries, keys and values in 8 bits
ValidationTable experts(int bits);
ValidationTable latent_attention();
ValidationTable linear_attention();

// Servers under load: the time between tokens, and the time to the first one.
ValidationTable served_tokens();
ValidationTable served_prompts();

// Each size is predicted from the other sizes of its series.
ValidationTable flash_attention();
ValidationTable point_to_point();
enum class Sizes { small, medium, large };  // below 1 MiB; from 1 to 64 MiB; 64 MiB and more
ValidationTable nccl_tests(Sizes sizes);
// The same rows, and those of nccl_gpus.csv, predicted by sim/cost/timeline/nccl_model.h as if nobody had
// measured them.
ValidationTable nccl_algebra(Sizes sizes);

}  // namespace cp::sim::detail
