#include "shared/context_parallel/attention.h"

#include <utility>

#include "shared/base/error.h"
#include "shared/base/text.h"

namespace cp {
namespace {

bool is_the_callers(const Buffer& buffer) { return buffer.kind != BufferKind::temporary; }

// "q 8,192 B, k ..."
std::string wanted_by(const Plan& plan) {
  std::vector<std::string> texts;
  for (const Buffer& buffer : plan.buffers) {
    if (is_the_callers(buffer)) texts.push_back(str(buffer.name, " (", buffer.bytes(), " bytes)"));
  }
  return join(texts, ", ");
}

// Into `bindings`, whose memory is used again.
void find_buffers(const Plan& plan, const NamedBuffers& buffers, Bindings& bindings) {
  bindings.clear();
  for (std::size_t i = 0; i < plan.buffers.size(); ++i) {
    const Buffer& buffer = plan.buffers[i];
    if (!is_the_callers(buffer)) continue;
    const auto found = buffers.find(buffer.name);
    if (found == buffers.end())
      throw InvalidInput(str("attention lacks the buffer ", buffer.name, "; it takes ", wanted_by(plan)));
    bindings.push_back({static_cast<BufferId>(i), found->second, buffer.bytes()});
  }
  if (bindings.size() == buffers.size()) return;
  for (const auto& [name, data] : buffers) {
    bool known = false;
    for (const Buffer& buffer : plan.buffers) known |= is_the_callers(buffer) && buffer.name == name;
    if (!known)
      throw InvalidInput(str("attention has no use for the buffer ", name, "; it takes ", wanted_by(plan)));
  }
}

Bindings bindings_of(const Plan& plan, const NamedBuffers& buffers) {
  Bindings bindings;
  find_buffers(plan, buffers, bindings);
  return bindings;
}

}  // namespace

ContextParallelAttention::ContextParallelAttention(Device& device, std::vector<Rank> ranks, Strategy strategy,
                                                   PlanCache& plans, AttentionOptions options)
    : device_(device),
      ranks_(std::move(ranks)),
      strategy_(strategy),
      plans_(plans),
      options_(options),
      prepared_(device) {}

std::map<std::string, std::int64_t> ContextParallelAttention::buffer_bytes(const AttentionProblem& problem,
                                                                           AttentionPass pass) {
  std::map<std::string, std::int64_t> bytes;
  for (const Buffer& buffer : plan(key(problem, pass), problem, pass).buffers) {
    if (is_the_callers(buffer)) bytes[buffer.name] = buffer.bytes();
  }
  return bytes;
}

void ContextParallelAttention::forward(const AttentionProblem& problem, const NamedBuffers& buffers,
                                       RankTrace* trace, CallerStream caller) {
  run(problem, AttentionPass::forward, buffers, trace, caller).wait();
}

void ContextParallelAttention::backward(const AttentionProblem& problem, const NamedBuffers& buffers,
                                        RankTrace* trace, CallerStream caller) {
  run(problem, AttentionPass::backward, buffers, trace, caller).wait();
}

Digest ContextParallelAttention::key(const AttentionProblem& problem, AttentionPass pass) const {
  Hasher hasher;
  hasher.add(std::string_view("attention")).add(static_cast<int>(pass)).add(device_.rank()).add_all(ranks_);
  hasher.add(to_string(options_.gradients)).add(name(options_.lse));
  hash(hash(hash(hasher, problem), strategy_), device_.target());
  return hasher.digest();
}

const Plan& ContextParallelAttention::plan(const Digest& key, const AttentionProblem& problem,
                                           AttentionPass pass) {
  return plans_.get(key, [&] {
    return attention_plan({problem, ranks_, strategy_, true, options_}, pass, device_.rank(),
                          device_.target());
  });
}

PlanRun ContextParallelAttention::run(const AttentionProblem& problem, AttentionPass pass,
                                      const NamedBuffers& buffers, RankTrace* trace, CallerStream caller) {
  const Digest its_key = key(problem, pass);
  const Plan& its_plan = plan(its_key, problem, pass);
  find_buffers(its_plan, buffers, bindings_);
  const auto given = [&]() -> const Plan& { return its_plan; };
  return prepared_.get(its_key, given, bindings_).run(bindings_, caller, trace);
}

PreparedAttention::PreparedAttention(ContextParallelAttention& attention, const AttentionProblem& problem,
                                     AttentionPass pass, const NamedBuffers& buffers, LaneId lane)
    : plan_(attention.plan(attention.key(problem, pass), problem, pass)),
      prepared_(attention.device_, plan_, bindings_of(plan_, buffers), lane) {}

Bindings PreparedAttention::bind(const NamedBuffers& buffers) const { return bindings_of(plan_, buffers); }

PlanRun PreparedAttention::run(const Bindings& changed, CallerStream caller, RankTrace* trace) {
  return prepared_.run(changed, caller, trace);
}

PlanRun PreparedAttention::run(const NamedBuffers& buffers, CallerStream caller, RankTrace* trace) {
  return run(bind(buffers), caller, trace);
}

}  // namespace cp
