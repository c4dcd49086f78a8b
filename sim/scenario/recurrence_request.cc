#include "sim/scenario/recurrence_request.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include "shared/base/error.h"
#include "sim/scenario/cp_ranks.h"
#include "sim/scenario/parallel_dims_fields.h"
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
      scans.push_back(value_of(job.strategies().empty() ? "--strategy" : "--strategies", name,
                               [&] { return parse_state_scan(trim(name)); }));
  }
  std::vector<RecurrenceStrategy> strategies;
  for (const Balance& balance : balances) {
    for (const StateScan scan : scans) strategies.push_back({scan, balance});
  }
  return strategies;
}

}  // namespace

RecurrenceJob make_recurrence_job(const proto::Recurrence& given, const Target& device) {
  const proto::Recurrence job = with_mesh(given);
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

namespace {

// The fields that mean the same, of an attention and of a recurrence; the others of an attention are of
// masks, scores and its heads.
const std::map<std::string, std::string>& same_fields() {
  static const std::map<std::string, std::string> kSame = {
      {"mesh", "mesh"},           {"strategy", "strategy"},     {"strategies", "strategies"},
      {"balance", "balance"},     {"seq_len", "seq_len"},       {"batch", "batch"},
      {"head_dim", "head_dim"},   {"v_head_dim", "v_head_dim"}, {"dtype", "dtype"},
      {"documents", "documents"}, {"backward", "backward"},     {"seed", "seed"},
      {"schedule", "schedule"},   {"target", "target"},         {"softmax_scale", "scale"}};
  return kSame;
}

// A field that has its default becomes unset in `to`.
void copy_field(const google::protobuf::Message& in, const std::string& from, google::protobuf::Message& out,
                const std::string& to) {
  using google::protobuf::FieldDescriptor;
  const FieldDescriptor *source = in.GetDescriptor()->FindFieldByName(from),
                        *target = out.GetDescriptor()->FindFieldByName(to);
  const auto *reads = in.GetReflection(), *writes = out.GetReflection();
  writes->ClearField(&out, target);
  if (!reads->HasField(in, source)) return;
  switch (source->cpp_type()) {
    case FieldDescriptor::CPPTYPE_STRING:
      return writes->SetString(&out, target, reads->GetString(in, source));
    case FieldDescriptor::CPPTYPE_INT64:
      return writes->SetInt64(&out, target, reads->GetInt64(in, source));
    case FieldDescriptor::CPPTYPE_UINT64:
      return writes->SetUInt64(&out, target, reads->GetUInt64(in, source));
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return writes->SetDouble(&out, target, reads->GetDouble(in, source));
    case FieldDescriptor::CPPTYPE_BOOL:
      return writes->SetBool(&out, target, reads->GetBool(in, source));
    default:
      return writes->SetEnumValue(&out, target, reads->GetEnumValue(in, source));
  }
}

}  // namespace

proto::Attention flags_of(const proto::Recurrence& job) {
  proto::Attention flags;
  for (const auto& [of_attention, of_recurrence] : same_fields())
    copy_field(job, of_recurrence, flags, of_attention);
  return flags;
}

proto::Recurrence recurrence_of(const proto::Attention& flags, proto::Recurrence job) {
  std::vector<const google::protobuf::FieldDescriptor*> given;
  flags.GetReflection()->ListFields(flags, &given);
  for (const auto* field : given) {
    if (same_fields().contains(field->name())) continue;
    std::string flag = field->name();
    std::replace(flag.begin(), flag.end(), '_', '-');
    const bool heads = flag == "q-heads" || flag == "kv-heads";
    throw InvalidInput(
        str("--", flag, " is of attention, and --recurrence has none; ",
            heads ? "use --key-heads (of q and k) and --value-heads" : "leave one of them out"));
  }
  for (const auto& [of_attention, of_recurrence] : same_fields())
    copy_field(flags, of_attention, job, of_recurrence);
  return job;
}

}  // namespace cp::sim
