#include "sim/scenario/recurrence_request.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include "shared/base/error.h"
#include "sim/scenario/cp_ranks.h"
#include "sim/scenario/read_values.h"
#include "traces/types_proto.h"

namespace cp::sim {
namespace {

std::vector<std::int64_t> parse_ends(std::string_view text) {
  if (text.find(';') != std::string_view::npos)
    throw InvalidInput(
        "the documents of a recurrence are those of all sequences of the batch; give one list");
  std::vector<std::int64_t> ends;
  for (const std::string_view end : split(text, '/')) ends.push_back(parse_int(end, "--documents"));
  return ends;
}

RecurrenceProblem make_problem(const proto::Recurrence& job) {
  if (job.seq_len() == 0) throw InvalidInput("--seq-len is missing; add, for example, --seq-len 4096");
  RecurrenceProblem problem;
  if (!job.rule().empty())
    problem.rule = value_of("--recurrence", job.rule(), [&] { return parse_recurrence_rule(job.rule()); });
  problem.seq_len = job.seq_len();
  if (job.has_batch()) problem.batch = job.batch();
  problem.key_heads = job.has_key_heads() ? job.key_heads() : 4;
  problem.value_heads = job.has_value_heads() ? job.value_heads() : problem.key_heads;
  if (job.has_head_dim()) problem.key_dim = job.head_dim();
  problem.value_dim = job.has_v_head_dim() ? job.v_head_dim() : problem.key_dim;
  if (job.dtype() != 0) problem.dtype = from_proto(job.dtype(), {FieldPath("recurrence"), "dtype"});
  if (job.has_scale()) problem.scale = job.scale();
  if (!job.documents().empty()) problem.cu_seqlens = parse_ends(job.documents());
  validate_problem(problem);
  return problem;
}

// All scans, of rows as they are most often split: in order, and by head and tail, as the attention layers
// of the same model may want them.
std::vector<RecurrenceStrategy> make_strategies(const proto::Recurrence& job) {
  if (!job.strategy().empty() && !job.strategies().empty()) {
    throw InvalidInput(str("--strategy ", job.strategy(), " and --strategies ", job.strategies(),
                           " say two things; give one of them"));
  }
  std::vector<Balance> balances = {{}};
  if (!job.balance().empty())
    balances = {value_of("--balance", job.balance(), [&] { return parse_balance(job.balance()); })};
  std::vector<StateScan> scans;
  if (job.strategies() == "all") {
    scans = state_scans();
    if (job.balance().empty()) balances.push_back({Balance::Kind::head_tail});
  } else {
    const std::string names = !job.strategies().empty() ? job.strategies()
                              : !job.strategy().empty() ? job.strategy()
                                                        : "all_gather";
    for (const std::string_view name : split(names, ','))
      scans.push_back(value_of("--strategy", name, [&] { return parse_state_scan(trim(name)); }));
  }
  std::vector<RecurrenceStrategy> strategies;
  for (const Balance& balance : balances) {
    for (const StateScan scan : scans) strategies.push_back({scan, balance});
  }
  return strategies;
}

}  // namespace

RecurrenceJob make_recurrence_job(const proto::Recurrence& job, const Target& device) {
  CpRanks cp = cp_ranks_of(parse_mesh_flag(job.mesh()));
  RecurrenceJob result;
  result.problem = make_problem(job);
  result.ranks = std::move(cp.ranks), result.where = std::move(cp.where);
  result.strategies = make_strategies(job);
  result.backward = job.backward();
  if (job.schedule() == proto::Redistribute::baton) result.schedule = Schedule::baton;
  result.seed = job.seed();
  result.target = target_of(job.target(), device);
  return result;
}

proto::Recurrence recurrence_of(const proto::Attention& flags, proto::Recurrence job) {
  using google::protobuf::FieldDescriptor;
  // The fields that mean the same; the others are of masks, scores and heads of attention.
  static const std::map<std::string, std::string> kSame = {
      {"mesh", "mesh"},           {"strategy", "strategy"},     {"strategies", "strategies"},
      {"balance", "balance"},     {"seq_len", "seq_len"},       {"batch", "batch"},
      {"head_dim", "head_dim"},   {"v_head_dim", "v_head_dim"}, {"dtype", "dtype"},
      {"documents", "documents"}, {"backward", "backward"},     {"seed", "seed"},
      {"schedule", "schedule"},   {"target", "target"},         {"softmax_scale", "scale"}};
  std::vector<const FieldDescriptor*> given;
  flags.GetReflection()->ListFields(flags, &given);
  for (const FieldDescriptor* from : given) {
    const auto same = kSame.find(from->name());
    if (same == kSame.end()) {
      std::string flag = from->name();
      std::replace(flag.begin(), flag.end(), '_', '-');
      const bool heads = flag == "q-heads" || flag == "kv-heads";
      throw InvalidInput(
          str("--", flag, " is of attention, and --recurrence has none; ",
              heads ? "use --key-heads (of q and k) and --value-heads" : "leave one of them out"));
    }
    const FieldDescriptor* to = job.GetDescriptor()->FindFieldByName(same->second);
    const auto *in = flags.GetReflection(), *out = job.GetReflection();
    switch (from->cpp_type()) {
      case FieldDescriptor::CPPTYPE_STRING:
        out->SetString(&job, to, in->GetString(flags, from));
        break;
      case FieldDescriptor::CPPTYPE_INT64:
        out->SetInt64(&job, to, in->GetInt64(flags, from));
        break;
      case FieldDescriptor::CPPTYPE_UINT64:
        out->SetUInt64(&job, to, in->GetUInt64(flags, from));
        break;
      case FieldDescriptor::CPPTYPE_DOUBLE:
        out->SetDouble(&job, to, in->GetDouble(flags, from));
        break;
      case FieldDescriptor::CPPTYPE_BOOL:
        out->SetBool(&job, to, in->GetBool(flags, from));
        break;
      default:
        out->SetEnumValue(&job, to, in->GetEnumValue(flags, from));
    }
  }
  return job;
}

}  // namespace cp::sim
