// The tables, each predicting its rows. For validate.cc alone.
#pragma once

#include "sim/cluster/software.h"
#include "sim/validate/validate.h"

namespace cp::sim::detail {

// `software`: what replaces the table's own profile; null for none.
ValidationTable ring_attention(bool backward, const SoftwareProfile* software);
ValidationTable ring_flash_attention(const SoftwareProfile* software);
ValidationTable usp(const SoftwareProfile* software);  // its rows of 131,072 tokens

// Each size predicted from the others.
ValidationTable flash_attention();
ValidationTable point_to_point();
ValidationTable nccl_tests(bool large);  // from 64 MiB on, or from 1 MiB to there
// The same rows by sim/timeline/nccl_model.h, as if no size had been measured.
ValidationTable nccl_algebra();

}  // namespace cp::sim::detail
