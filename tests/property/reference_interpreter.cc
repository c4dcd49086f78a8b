#include "tests/property/reference_interpreter.h"

#include <bit>
#include <cstring>
#include <optional>
#include <string>

#include "shared/base/index.h"
#include "shared/base/text.h"
#include "tests/support/values.h"

namespace cp::testing {
namespace {

template <class T>
double load_as(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return static_cast<double>(value);
}
template <class T>
void store_as(std::byte* at, double value) {
  // Random bytes may be any number: what does not fit becomes 0, as good as any.
  const bool fits = std::is_floating_point_v<T> || (value > -2e9 && value < 2e9);
  const T stored = fits ? static_cast<T>(value) : T{};
  std::memcpy(at, &stored, sizeof stored);
}

// One rank: its memory, and its steps with all iterations written out.
class Machine {
 public:
  struct Task {
    const Step* step;
    StepId id;
    std::int64_t iteration;
    std::int32_t segment;
    bool done = false;
  };

  Machine(const Plan& of, std::mt19937_64& random) : plan(of), arena_(idx(of.arena_bytes)) {
    fill_random(arena_, random);
    for (std::size_t i = 0; i < plan.buffers.size(); ++i) {
      const Buffer& buffer = plan.buffers[i];
      std::vector<std::byte>& bytes = owned_.emplace_back();
      if (buffer.kind == BufferKind::temporary) continue;
      bytes.resize(idx(buffer.bytes()));
      fill_random(bytes, random);
      if (buffer.kind == BufferKind::output) continue;
      for (std::int64_t k = 0; k < buffer.numel; ++k) {
        store(static_cast<BufferId>(i), k,
              static_cast<double>((plan.self * 37 + k * 11 + static_cast<int>(i) * 5) % 101 + 1));
      }
    }
    std::int32_t segment = 0;
    StepId first = 0;
    for (const Segment& each : plan.segments) {
      if (const Step* step = std::get_if<Step>(&each)) {
        tasks.push_back({step, first++, 0, segment++});
        continue;
      }
      const Repeat& repeat = std::get<Repeat>(each);
      for (std::int64_t turn = 0; turn < repeat.count; ++turn) {
        for (std::size_t i = 0; i < repeat.steps.size(); ++i) {
          tasks.push_back({&repeat.steps[i], first + static_cast<StepId>(i), turn, segment});
        }
      }
      first += static_cast<StepId>(repeat.steps.size());
      ++segment;
    }
  }

  // Whether streams and edges let the task start.
  bool is_free(std::size_t task, bool one_at_a_time) const {
    const Task& self = tasks[task];
    for (std::size_t i = 0; i < tasks.size(); ++i) {
      const Task& other = tasks[i];
      if (other.done) continue;
      if (i < task && other.step->stream == self.step->stream) return false;
      if (i < task && one_at_a_time && is_collective(*self.step) && is_collective(*other.step)) return false;
      for (const Edge& edge : self.step->after) {
        if (edge.step != other.id) continue;
        const bool inside = other.segment == self.segment;
        if (inside ? other.iteration == self.iteration - edge.iterations_back : is_last(other)) return false;
      }
    }
    return true;
  }

  std::vector<double> read(const View& view, std::int64_t iteration) const {
    std::vector<double> values;
    for (const std::int64_t at : elements(view, iteration)) values.push_back(load(view.buffer, at));
    return values;
  }
  void write(const View& view, std::int64_t iteration, std::span<const double> values) {
    std::size_t next = 0;
    for (const std::int64_t at : elements(view, iteration)) store(view.buffer, at, values[next++]);
  }

  void run_kernel(const Kernel& kernel, std::int64_t turn) {
    const auto update = [&](const View& view, auto&& change) {
      std::vector<double> values = read(view, turn);
      for (std::size_t i = 0; i < values.size(); ++i) values[i] = change(values[i], i);
      write(view, turn, values);
    };
    if (const Copy* copy = std::get_if<Copy>(&kernel)) {
      write(copy->out, turn, read(copy->in, turn));
    } else if (const Cast* cast = std::get_if<Cast>(&kernel)) {
      write(cast->out, turn, read(cast->in, turn));
    } else if (const Fill* fill = std::get_if<Fill>(&kernel)) {
      write(fill->out, turn, std::vector<double>(idx(fill->out.numel()), fill->value));
    } else if (const Scale* scale = std::get_if<Scale>(&kernel)) {
      update(scale->data, [&](double value, std::size_t) { return value * scale->factor; });
    } else if (const Accumulate* add = std::get_if<Accumulate>(&kernel)) {
      const std::vector<double> in = read(add->in, turn);
      update(add->out, [&](double value, std::size_t i) { return combined(add->op, value, in[i]); });
    } else {
      throw RunFault("a kernel that the reference interpreter lacks");
    }
  }

  const std::vector<std::byte>& caller_bytes(std::size_t buffer) const { return owned_[buffer]; }

  const Plan& plan;
  std::vector<Task> tasks;

 private:
  static void fill_random(std::vector<std::byte>& bytes, std::mt19937_64& random) {
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  }

  bool is_last(const Task& task) const {
    const Repeat* repeat = std::get_if<Repeat>(&plan.segments[idx(task.segment)]);
    return repeat == nullptr || task.iteration == repeat->count - 1;
  }

  // The places of a view's elements, in row-major order.
  static std::vector<std::int64_t> elements(const View& view, std::int64_t iteration) {
    std::vector<std::int64_t> all{view.offset};
    if (view.advance.stride != 0) {
      std::int64_t turn = iteration + view.advance.phase;
      if (view.advance.period > 0) turn %= view.advance.period;
      all[0] += view.advance.stride * turn;
    }
    for (std::size_t dim = 0; dim < view.shape.size(); ++dim) {
      std::vector<std::int64_t> finer;
      for (const std::int64_t start : all) {
        for (std::int64_t i = 0; i < view.shape[dim]; ++i) finer.push_back(start + i * view.strides[dim]);
      }
      all = std::move(finer);
    }
    return all;
  }

  std::byte* at(BufferId id, std::int64_t element) {
    const Buffer& buffer = plan.buffers.at(idx(id));
    const bool in_arena = buffer.kind == BufferKind::temporary;
    std::vector<std::byte>& bytes = in_arena ? arena_ : owned_[idx(id)];
    const std::int64_t begin = element * size_bytes(buffer.dtype) + (in_arena ? buffer.offset_bytes : 0);
    if (begin < 0 || idx(begin + size_bytes(buffer.dtype)) > bytes.size())
      throw RunFault("outside of memory");
    return bytes.data() + begin;
  }
  double load(BufferId id, std::int64_t element) const {
    const std::byte* place = const_cast<Machine*>(this)->at(id, element);
    switch (plan.buffers[idx(id)].dtype) {
      case DType::f32:
        return load_as<float>(place);
      case DType::i32:
        return load_as<std::int32_t>(place);
      case DType::i64:
        return load_as<std::int64_t>(place);
      default:
        throw RunFault("a dtype that the reference interpreter lacks");
    }
  }
  void store(BufferId id, std::int64_t element, double value) {
    std::byte* place = at(id, element);
    switch (plan.buffers[idx(id)].dtype) {
      case DType::f32:
        return store_as<float>(place, value);
      case DType::i32:
        return store_as<std::int32_t>(place, value);
      case DType::i64:
        return store_as<std::int64_t>(place, value);
      default:
        throw RunFault("a dtype that the reference interpreter lacks");
    }
  }

  std::vector<std::byte> arena_;
  std::vector<std::vector<std::byte>> owned_;  // by buffer
};

class World {
 public:
  World(std::span<const Plan> plans, std::mt19937_64& random, bool one_at_a_time)
      : random_(random), one_at_a_time_(one_at_a_time) {
    for (const Plan& plan : plans) machines_.emplace_back(plan, random);
  }

  Results run() {
    for (;;) {
      std::vector<Move> moves = legal_moves();
      if (moves.empty()) break;
      make(moves[random_() % moves.size()]);
    }
    Results results;
    for (const Machine& machine : machines_) {
      results.emplace_back();
      for (std::size_t i = 0; i < machine.plan.buffers.size(); ++i) {
        const BufferKind kind = machine.plan.buffers[i].kind;
        const bool is_result = kind == BufferKind::output || kind == BufferKind::inout;
        results.back().push_back(is_result ? machine.caller_bytes(i) : std::vector<std::byte>{});
      }
      for (const Machine::Task& task : machine.tasks) {
        if (!task.done) throw RunFault(str("rank ", machine.plan.self, " hangs in step ", task.id));
      }
    }
    return results;
  }

 private:
  struct Part {
    Machine* machine;
    std::size_t task;
    const Step& step() const { return *machine->tasks[task].step; }
    std::int64_t turn() const { return machine->tasks[task].iteration; }
    const Collective& collective() const { return std::get<Collective>(step().work); }
    const Group& group() const { return machine->plan.groups.at(idx(group_of(collective()))); }
  };
  using Move = std::vector<Part>;  // a kernel, or a collective's parts by index in the group

  std::vector<Move> legal_moves() {
    std::vector<Part> heads;
    for (Machine& machine : machines_) {
      for (std::size_t i = 0; i < machine.tasks.size(); ++i) {
        if (!machine.tasks[i].done && machine.is_free(i, one_at_a_time_)) heads.push_back({&machine, i});
      }
    }
    std::vector<Move> moves;
    for (const Part& head : heads) {
      if (!is_collective(head.step())) {
        moves.push_back({head});
        continue;
      }
      const Group& group = head.group();
      if (group.ranks.at(0) != head.machine->plan.self) continue;
      Move parts;
      for (const Rank member : group.ranks) {
        for (const Part& other : heads) {
          if (other.machine->plan.self == member && is_collective(other.step()) && other.group() == group) {
            parts.push_back(other);
          }
        }
      }
      if (parts.size() == group.ranks.size()) moves.push_back(parts);
    }
    return moves;
  }

  void make(const Move& move) {
    if (const Kernel* kernel = std::get_if<Kernel>(&move[0].step().work)) {
      move[0].machine->run_kernel(*kernel, move[0].turn());
    } else {
      for (const Part& part : move) {
        if (part.collective().index() != move[0].collective().index())
          throw RunFault("different collectives meet");
      }
      std::visit([&](const auto& op) { run(op, move); }, move[0].collective());
    }
    for (const Part& part : move) part.machine->tasks[part.task].done = true;
  }

  // ---- collectives: first everything is read, then written ----

  template <class Op>
  static const Op& op_of(const Part& part) {
    return std::get<Op>(part.collective());
  }

  template <class Op>
  static std::vector<std::vector<double>> inputs(const Move& move) {
    std::vector<std::vector<double>> all;
    for (const Part& part : move) all.push_back(part.machine->read(op_of<Op>(part).in, part.turn()));
    for (const auto& each : all) {
      if (each.size() != all[0].size()) throw RunFault("members bring different counts");
    }
    return all;
  }
  template <class Op>
  static void output(const Part& part, std::span<const double> values) {
    const View& view = op_of<Op>(part).out;
    if (idx(view.numel()) != values.size()) throw RunFault("a member expects another count");
    part.machine->write(view, part.turn(), values);
  }
  static std::vector<double> reduce(ReduceOp op, const std::vector<std::vector<double>>& all) {
    std::vector<double> result = all[0];
    for (std::size_t i = 1; i < all.size(); ++i) {
      for (std::size_t k = 0; k < result.size(); ++k) result[k] = combined(op, result[k], all[i][k]);
    }
    if (op == ReduceOp::avg) {
      for (double& value : result) value /= static_cast<double>(all.size());
    }
    return result;
  }
  template <class Op>
  static void require_same_op(const Move& move) {
    for (const Part& part : move) {
      if (op_of<Op>(part).op != op_of<Op>(move[0]).op) throw RunFault("different reductions meet");
    }
  }

  static void run(const AllGather&, const Move& move) {
    std::vector<double> whole;
    for (const auto& block : inputs<AllGather>(move)) whole.insert(whole.end(), block.begin(), block.end());
    for (const Part& part : move) output<AllGather>(part, whole);
  }
  static void run(const AllReduce& op, const Move& move) {
    require_same_op<AllReduce>(move);
    const std::vector<double> result = reduce(op.op, inputs<AllReduce>(move));
    for (const Part& part : move) output<AllReduce>(part, result);
  }
  static void run(const ReduceScatter& op, const Move& move) {
    require_same_op<ReduceScatter>(move);
    const std::vector<double> result = reduce(op.op, inputs<ReduceScatter>(move));
    const std::size_t block = result.size() / move.size();
    for (std::size_t i = 0; i < move.size(); ++i) {
      output<ReduceScatter>(move[i], std::span(result).subspan(i * block, block));
    }
  }
  static void run(const AllToAll&, const Move& move) {
    const auto all = inputs<AllToAll>(move);
    const std::size_t block = all[0].size() / move.size();
    for (std::size_t to = 0; to < move.size(); ++to) {
      std::vector<double> whole;
      for (const auto& in : all) {
        const auto begin = in.begin() + static_cast<std::ptrdiff_t>(to * block);
        whole.insert(whole.end(), begin, begin + static_cast<std::ptrdiff_t>(block));
      }
      output<AllToAll>(move[to], whole);
    }
  }
  static void run(const Broadcast& op, const Move& move) {
    for (const Part& part : move) {
      if (op_of<Broadcast>(part).root != op.root) throw RunFault("different roots meet");
    }
    const Part& root = move.at(idx(op.root));
    const std::vector<double> values = root.machine->read(op_of<Broadcast>(root).in, root.turn());
    for (const Part& part : move) output<Broadcast>(part, values);
  }
  static void run(const Exchange&, const Move& move) {
    // Message n from i to j is the n-th of i's sends to j and of j's receives from i.
    std::vector<std::vector<std::vector<double>>> sent(move.size() * move.size());
    for (std::size_t i = 0; i < move.size(); ++i) {
      for (const Transfer& send : op_of<Exchange>(move[i]).sends) {
        sent.at(i * move.size() + idx(send.peer)).push_back(move[i].machine->read(send.view, move[i].turn()));
      }
    }
    std::vector<std::size_t> taken(sent.size());
    for (std::size_t j = 0; j < move.size(); ++j) {
      for (const Transfer& recv : op_of<Exchange>(move[j]).recvs) {
        const std::size_t pair = idx(recv.peer) * move.size() + j;
        if (taken.at(pair) == sent[pair].size()) throw RunFault("a receive without a send");
        const std::vector<double>& message = sent[pair][taken[pair]++];
        if (message.size() != idx(recv.view.numel())) throw RunFault("a receive expects another count");
        move[j].machine->write(recv.view, move[j].turn(), message);
      }
    }
    for (std::size_t pair = 0; pair < sent.size(); ++pair) {
      if (taken[pair] != sent[pair].size()) throw RunFault("a send without a receive");
    }
  }

  std::mt19937_64& random_;
  bool one_at_a_time_;
  std::vector<Machine> machines_;
};

}  // namespace

Results interpret(std::span<const Plan> plans, std::mt19937_64& random, bool one_at_a_time) {
  return World(plans, random, one_at_a_time).run();
}

}  // namespace cp::testing
