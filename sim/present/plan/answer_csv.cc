#include "sim/present/plan/answer_csv.h"

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <vector>

#include "shared/context_parallel/strategy.h"
#include "sim/cost/cluster/read_software.h"
#include "sim/present/csv_line.h"

namespace cp::sim {
namespace {

using Line = CsvLine;

std::vector<TimePart> parts_of(const std::vector<Candidate>& candidates) {
  std::vector<TimePart> parts;
  for (const Candidate& candidate : candidates) {
    for (const PartTime& of_step : candidate.parts) {
      if (std::find(parts.begin(), parts.end(), of_step.part) == parts.end()) parts.push_back(of_step.part);
    }
  }
  return parts;
}

std::string column(std::string_view prefix, std::string_view name, std::string_view unit) {
  std::string text(prefix);
  text += name;
  text += unit;
  std::replace(text.begin(), text.end(), ' ', '_');
  return text;
}

void add_header(std::string& out, const std::vector<TimePart>& parts) {
  Line line(out);
  for (const char* name : {"rank",
                           "layout",
                           "gpus",
                           "dp_replicate",
                           "dp_shard",
                           "cp",
                           "tp",
                           "pp",
                           "ep",
                           "virtual_stages",
                           "strategy",
                           "sharding",
                           "order",
                           "micro_batch",
                           "recompute",
                           "loss_chunks",
                           "mlp_chunks",
                           "zero",
                           "sequence_parallel",
                           "activations",
                           "step_us",
                           "low_us",
                           "high_us",
                           "chance",
                           "regret_us",
                           "tokens_per_s_per_gpu",
                           "mfu",
                           "exposed_us",
                           "bound"}) {
    line.add(name);
  }
  for (const TimePart part : parts) line.add(column("part_", name(part), "_us"));
  for (const auto& [term, bytes] : terms(Memory{})) line.add(column("memory_", term, "_bytes"));
  for (const char* name : {"counted_bytes", "usable_bytes", "memory_low_bytes", "memory_high_bytes",
                           "nvlink_utilisation", "nic_utilisation", "ttft_us"}) {
    line.add(name);
  }
  line.end();
}

void add_candidate(std::string& out, const Candidate& c, const std::vector<TimePart>& parts) {
  const ParallelLayout& l = c.layout;
  Line line(out);
  line.add(c.rank).add(to_string(l)).add(l.world()).add(l.dp_replicate).add(l.dp_shard).add(l.cp).add(l.tp);
  line.add(l.pp).add(l.ep).add(l.virtual_stages).add(l.cp > 1 ? to_string(l.strategy, l.cp) : "");
  line.add(to_string(l.sharding)).add(to_string(l.order)).add(l.micro_batch).add(to_string(l.recompute));
  line.add(l.loss_chunks)
      .add(l.mlp_chunks)
      .add(l.zero_stage())
      .add(l.sequence_parallel ? "yes" : "no")
      .add(l.host_activations ? "host" : "gpu")
      .add(c.step_us)
      .add(c.low_us)
      .add(c.high_us)
      .add(c.chance)
      .add(c.regret_us)
      .add(c.tokens_per_s_per_gpu)
      .add(c.mfu);
  line.add(c.exposed_us).add(bound_text(c.bound));
  for (const TimePart part : parts) {
    double us = 0;
    for (const PartTime& of_step : c.parts) us += of_step.part == part ? of_step.us : 0;
    line.add(us);
  }
  for (const auto& [term, bytes] : terms(c.memory)) line.add(bytes);
  line.add(c.memory.used() - c.memory.context)
      .add(c.usable_bytes)
      .add(c.memory_low_bytes)
      .add(c.memory_high_bytes)
      .add(c.nvlink_utilisation)
      .add(c.nic_utilisation);
  if (c.ttft_us) {
    line.add(*c.ttft_us);
  } else {
    line.add("");
  }
  line.end();
}

}  // namespace

std::string to_csv(const PlanAnswer& answer) {
  const std::vector<TimePart> parts = parts_of(answer.all);
  std::string out;
  add_header(out, parts);
  for (const Candidate& candidate : answer.all) add_candidate(out, candidate, parts);
  return out;
}

}  // namespace cp::sim
