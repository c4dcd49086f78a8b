// The tables, each predicting its rows. For validate.cc alone.
#pragma once

#include "sim/cluster/software.h"
#include "sim/validate/validate.h"

namespace cp::sim::detail {

// `software`: what replaces the table's own profile; null for none.
ValidationTable ring_attention(bool backward,
                               const SoftwareProfile* software);        // ring_attention_a800_h800.csv
ValidationTable ring_flash_attention(const SoftwareProfile* software);  // ring_flash_attention.csv
ValidationTable usp(const SoftwareProfile* software);                   // usp_8xa100_nvlink.csv, 128K rows
ValidationTable nccl_tests(
    bool large);  // nccl_tests.csv: from 64 MiB on, or from 1 MiB to there; each size left out

ValidationTable
nccl_algebra();  // the same rows by sim/timeline/nccl_model.h, as if no size had been measured

}  // namespace cp::sim::detail
