// The tables, each predicting its rows. For validate.cc alone.
#pragma once

#include <string>
#include <vector>

#include "sim/accuracy/validate/validate.h"
#include "sim/cost/cluster/software.h"

namespace cp::sim::detail {

// Between the values, as numpy does it.
double percentile(const std::vector<double>& ascending, double share);

// Attention kernels as the cluster's presets know them; or made as fast as rows of the table say, which is no
// answer of a command and shows what is left when the kernels are known.
enum class Kernels { as_known, rescaled };

// `software`: what replaces the table's own profile; null for none.
ValidationTable ring_attention(bool backward, const SoftwareProfile* software);  // blocks of 8 MB and more
ValidationTable ring_attention_short(const SoftwareProfile* software);           // smaller ones, both passes
ValidationTable ring_flash_attention(const SoftwareProfile* software, Kernels kernels);
ValidationTable usp(const SoftwareProfile* software, Kernels kernels);  // its rows of 131,072 tokens
ValidationTable usp_short(
    const SoftwareProfile* software);  // those of 512 and 8,192, which wait for the host

// Attention of training, measured on one GPU with cuDNN; and of a split sequence on "H100" or "B200".
ValidationTable attention_backward_hopper();
ValidationTable attention_backward_blackwell();
ValidationTable attention_forward_cudnn();
ValidationTable context_parallel(const std::string& gpu);

// Steps of whole models, and the memory they take.
ValidationTable end_to_end();
ValidationTable end_to_end_memory();

// Rows that were left out of the fits of sim/cost/presets/rates: attention, forward, of one of its GPUs; of
// all GPUs the others.
ValidationTable attention_of_gpu(const std::string& gpu);
ValidationTable attention_without_mask();
ValidationTable decode_attention();
ValidationTable products(int bits);
ValidationTable attention_8();  // with queries, keys and values in 8 bits
ValidationTable experts(int bits);
ValidationTable latent_attention();
ValidationTable linear_attention();

// Servers under load: time between tokens, and to the first one.
ValidationTable served_tokens();
ValidationTable served_prompts();

// Each size predicted from the others.
ValidationTable flash_attention();
ValidationTable point_to_point();
enum class Sizes { small, medium, large };  // below 1 MiB; from there to 64 MiB; from there on
ValidationTable nccl_tests(Sizes sizes);
// The same rows and those of nccl_gpus.csv by sim/cost/timeline/nccl_model.h, as if nobody had measured them.
ValidationTable nccl_algebra(Sizes sizes);

}  // namespace cp::sim::detail
