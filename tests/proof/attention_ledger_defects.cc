#include "tests/proof/attention_ledger_defects.h"

#include <limits>
#include <map>

#include "shared/base/error.h"
#include "shared/plan/check.h"
#include "sim/proof/ledger/attention_ledger.h"
#include "tests/proof/message_damage.h"
#include "tests/proof/operand_damage.h"

namespace cp::testing {
namespace {

using Plans = std::vector<Plan>;
using Words = std::vector<std::string>;
using Forward = AttentionForward;
using Backward = AttentionBackward;

Defect slices(std::string_view name, const SliceChange& change, const Words& words) {
  return {name, Book::cells, [=](Plans& plans) { return change_slices(plans, change, words); }};
}

// A step of the kind Op that changes `data` left out.
template <class Op>
Defect left_out(std::string_view name, View Op::*data, const Words& words) {
  return {name, Book::cells, [=](Plans& plans) {
            std::vector<Damage> damages;
            for_each<Op>(plans, [&](Plan& plan, StepId id, Step& step, Op& op) {
              damages.push_back({at(plan, id), words_at(plan, id, words),
                                 [&step, view = op.*data] { disarm(step, view); }});
            });
            return damages;
          }};
}
template <class Op>
Defect done_twice(std::string_view name, const Words& words) {
  return {name, Book::cells, [=](Plans& plans) {
            std::vector<Damage> damages;
            for_each<Op>(plans, [&](Plan& plan, StepId id, Step&, Op&) {
              damages.push_back(
                  {at(plan, id), words_at(plan, id, words), [&plan, id] { repeat_step(plan, id); }});
            });
            return damages;
          }};
}

Defect flag(std::string_view name, bool Backward::*field, bool value, const Words& words) {
  return {name, Book::cells, [=](Plans& plans) {
            std::vector<Damage> damages;
            for_each<Backward>(plans, [&](Plan& plan, StepId id, Step&, Backward& op) {
              if (op.*field != value) {
                damages.push_back(
                    {at(plan, id), words_at(plan, id, words), [&op, field, value] { op.*field = value; }});
              }
            });
            return damages;
          }};
}

template <class Op>
Defect taken(std::string_view name, const std::vector<View Op::*>& operands, const Words& words) {
  return {name, Book::cells, [=](Plans& plans) { return take_operand(plans, operands, words); }};
}
template <class Op>
Defect transposed(std::string_view name, View Op::*operand, std::size_t a, std::size_t b,
                  const Words& words) {
  return {name, Book::cells, [=](Plans& plans) { return transpose_operand(plans, operand, a, b, words); }};
}
template <class Op>
Defect shifted(std::string_view name, View Op::*operand, const Words& words) {
  return {name, Book::cells, [=](Plans& plans) { return shift_operand(plans, operand, words); }};
}
// One operand in the place of another, of the same kernel.
template <class Op>
Defect mistaken(std::string_view name, View Op::*operand, View Op::*other, const Words& words) {
  return {name, Book::cells, [=](Plans& plans) {
            std::vector<Damage> damages;
            for_each<Op>(plans, [&](Plan& plan, StepId id, Step&, Op& op) {
              damages.push_back({at(plan, id), words_at(plan, id, words),
                                 [&op, operand, other] { op.*operand = op.*other; }});
            });
            return damages;
          }};
}

std::vector<Damage> fill_with_another_value(Plans& plans) {
  std::vector<Damage> damages;
  for_each<Fill>(plans, [&](Plan& plan, StepId id, Step&, Fill& op) {
    const double other = op.value == 0 ? -std::numeric_limits<double>::infinity() : 0;
    damages.push_back({at(plan, id), words_at(plan, id, {"$rank"}), [&op, other] { op.value = other; }});
  });
  return damages;
}

std::vector<Damage> combine_otherwise(Plans& plans) {
  std::vector<Damage> damages;
  for_each<Accumulate>(plans, [&](Plan& plan, StepId id, Step&, Accumulate& op) {
    damages.push_back({at(plan, id), {at(plan, id), "combines with max"}, [&op] { op.op = ReduceOp::max; }});
  });
  return damages;
}

std::vector<Damage> add_instead_of_merge(Plans& plans) {
  std::vector<Damage> damages;
  for_each<AttentionMerge>(plans, [&](Plan& plan, StepId id, Step& step, AttentionMerge& op) {
    damages.push_back({at(plan, id), {at(plan, id), "adds out of"}, [&step, in = op.in, out = op.out] {
                         step.work = Kernel{Accumulate{ReduceOp::sum, in, out}};
                       }});
  });
  return damages;
}
std::vector<Damage> scale_instead_of_sum(Plans& plans) {
  std::vector<Damage> damages;
  for_each<Accumulate>(plans, [&](Plan& plan, StepId id, Step& step, Accumulate& op) {
    damages.push_back({at(plan, id), {at(plan, id), "scales by 2"}, [&step, out = op.out] {
                         step.work = Kernel{Scale{out, 2}};
                       }});
  });
  return damages;
}
// The first index of that dimension read in the place of all.
template <class Op>
Defect repeated(std::string_view name, View Op::*operand, std::size_t dim, const Words& words) {
  return {name, Book::cells, [=](Plans& plans) {
            std::vector<Damage> damages;
            for_each<Op>(plans, [&](Plan& plan, StepId id, Step&, Op& op) {
              if ((op.*operand).shape[dim] < 2) return;
              damages.push_back({at(plan, id), words_at(plan, id, words),
                                 [&op, operand, dim] { (op.*operand).strides[dim] = 0; }});
            });
            return damages;
          }};
}

template <class Op>
Defect scored(std::string_view name) {
  return {name, Book::cells, [](Plans& plans) {
            std::vector<Damage> damages;
            for_each<Op>(plans, [&](Plan& plan, StepId id, Step&, Op& op) {
              damages.push_back(
                  {at(plan, id), {at(plan, id), "scales its scores by 1,"}, [&op] { op.softmax_scale = 1; }});
            });
            return damages;
          }};
}

// The sum of at least three parts kept in another type than f32 and the problem's, on one rank.
std::vector<Damage> keep_sums_in(DType dtype, Plans& plans) {
  std::vector<Damage> damages;
  for (Plan& plan : plans) {
    std::map<BufferId, std::vector<StepId>> added;
    for (const StepRef& ref : steps_of(plan)) {
      const auto* kernel = std::get_if<Kernel>(&ref.step->work);
      const auto* backward = kernel == nullptr ? nullptr : std::get_if<Backward>(kernel);
      if (backward != nullptr && backward->accumulate_dq && !is_absent(backward->dq))
        added[backward->dq.buffer].push_back(ref.id);
    }
    for (const auto& [id, steps] : added) {
      if (steps.size() < 2 || plan.buffers[static_cast<std::size_t>(id)].dtype != DType::f32) continue;
      damages.push_back(
          {at(plan, steps.front()),
           {at(plan, steps.front()), "keeps dq of", str("in ", name(dtype))},
           [&plan, id = id, dtype] { plan.buffers[static_cast<std::size_t>(id)].dtype = dtype; }});
    }
  }
  return damages;
}

void make_full(std::vector<MaskSlice>& slices, std::size_t which) {
  slices[which].kind = MaskSlice::Kind::full;
}
SliceChange resize_window(std::int64_t by) {
  return [=](std::vector<MaskSlice>& slices, std::size_t which) {
    if (slices[which].window + by > 0) slices[which].window += by;
  };
}

}  // namespace

Found look(const AttentionRequest& request, AttentionPass pass, const std::vector<Plan>& plans) {
  Found found;
  try {
    check(plans);
  } catch (const CheckFailure& error) {
    found.check = error.what();  // of one rank's own: the shadow can run all the same
  }
  sim::AttentionLedger ledger = sim::keep_ledger(request, pass, plans);
  found.cells = std::move(ledger.cells), found.bytes = std::move(ledger.bytes);
  return found;
}

const std::vector<Defect>& all_defects() {
  static const std::vector<Defect> defects = {
      slices("slice dropped", drop_slice(), {"nobody computed query", "$rank"}),
      slices("slice twice", repeat_slice(), {"$step", "computed query", "again, after"}),
      slices("slice one key on", move_slice(0, 1), {"computed query", "$rank"}),
      slices("slice one key back", move_slice(0, -1), {"computed query", "$rank"}),
      slices("slice one query on", move_slice(1, 0), {"computed query", "$rank"}),
      slices("slice one query back", move_slice(-1, 0), {"computed query", "$rank"}),
      slices("slice one key wider", resize_slice(0, 1), {"$step", "computed query"}),
      slices("slice one key narrower", resize_slice(0, -1), {"nobody computed query", "$rank"}),
      slices("slice one query longer", resize_slice(1, 0), {"$step"}),
      slices("slice one query shorter", resize_slice(-1, 0), {"nobody computed query", "$rank"}),
      slices("full instead of causal or window", make_full, {"$step", "computed query"}),
      slices("diagonal one key on", move_diagonal(1), {"computed query", "$rank"}),
      slices("diagonal one key back", move_diagonal(-1), {"computed query", "$rank"}),
      slices("window one key wider", resize_window(1), {"$step", "computed query"}),
      slices("window one key narrower", resize_window(-1), {"nobody computed query", "$rank"}),

      taken<Forward>("k of another block", {&Forward::k}, {"$step", "v is v of", "where k is"}),
      taken<Forward>("v of another block", {&Forward::v}, {"$step", "v is ", "where k is k of"}),
      taken<Forward>("k and v of another block", {&Forward::k, &Forward::v}, {"$step", " k"}),
      taken<Backward>("k of another block, backward", {&Backward::k}, {"$step", "v is v of", "where k is"}),
      taken<Backward>("v of another block, backward", {&Backward::v}, {"$step", "v is ", "where k is k of"}),
      taken<Backward>("k and v of another block, backward", {&Backward::k, &Backward::v}, {"$rank", " k"}),
      taken<Backward>("q of another block, backward", {&Backward::q}, {"$step", "where q is"}),
      taken<Backward>("dout of another block", {&Backward::dout}, {"$step", "dout is", "where q is q of"}),
      taken<Backward>("lse of another block", {&Backward::lse}, {"$step", "lse is", "where q is q of"}),
      taken<Backward>("delta of another block", {&Backward::delta}, {"$step", "delta is", "where q is q of"}),
      taken<Backward>("dq to another block", {&Backward::dq}, {"dq of"}),
      taken<Backward>("dk to another block", {&Backward::dk}, {"dk of"}),
      taken<Backward>("dv to another block", {&Backward::dv}, {"dv of"}),

      mistaken<Forward>("v for k", &Forward::k, &Forward::v, {"$step", "k is v of", "no row of k"}),
      mistaken<Forward>("k for v", &Forward::v, &Forward::k, {"$step", "v is k of", "no row of v"}),
      mistaken<Backward>("dout for q", &Backward::q, &Backward::dout, {"$step", "q is dout of"}),
      mistaken<Backward>("q for dout", &Backward::dout, &Backward::q, {"$step", "dout is q of"}),
      mistaken<Backward>("delta for lse", &Backward::lse, &Backward::delta, {"$step", "lse is delta of"}),
      mistaken<Backward>("lse for delta", &Backward::delta, &Backward::lse, {"$step", "delta is lse of"}),
      mistaken<AttentionDelta>("out for dout", &AttentionDelta::dout, &AttentionDelta::out,
                               {"$step", "dout is out of", "no row of dout"}),

      transposed<Forward>("k of the other batch", &Forward::k, 0, 2,
                          {"$step", "v is v of", "where k is k of"}),
      transposed<Forward>("q of the other batch", &Forward::q, 0, 2,
                          {"$step", "q of batch", "meets k of batch"}),
      transposed<Forward>("out in the other batch's place", &Forward::out, 0, 2, {"out of"}),
      transposed<Forward>("lse in the other batch's place", &Forward::lse, 0, 1, {"lse of"}),
      transposed<Backward>("dout of the other batch", &Backward::dout, 0, 2,
                           {"$step", "dout is dout of", "where q is q of"}),
      transposed<Backward>("lse of the other batch", &Backward::lse, 0, 1,
                           {"$step", "lse is lse of", "where q is q of"}),
      transposed<Backward>("delta of the other batch", &Backward::delta, 0, 1,
                           {"$step", "delta is delta of", "where q is q of"}),
      transposed<Backward>("dq in the other batch's place", &Backward::dq, 0, 2, {"dq of"}),
      transposed<Backward>("dk in the other batch's place", &Backward::dk, 0, 2, {"dk of"}),
      transposed<Backward>("dv in the other batch's place", &Backward::dv, 0, 2, {"dv of"}),
      transposed<AttentionDelta>("delta of the other batch's dout", &AttentionDelta::dout, 0, 2,
                                 {"$step", "dout is dout of", "where out is out of"}),
      transposed<Cast>("cast of another row", &Cast::in, 0, 2, {"ends with", "belongs"}),
      shifted<Forward>("k one row off", &Forward::k, {"$step", "v is v of", "where k is"}),
      shifted<Forward>("v one row off", &Forward::v, {"$step", "v is", "where k is k of"}),
      shifted<Backward>("lse one row off", &Backward::lse, {"$step", "lse is", "where q is q of"}),
      shifted<Backward>("delta one row off", &Backward::delta, {"$step", "delta is", "where q is q of"}),
      shifted<Backward>("dk one row off", &Backward::dk, {"dk of"}),
      shifted<Backward>("dv one row off", &Backward::dv, {"dv of"}),
      shifted<Accumulate>("sum of other rows", &Accumulate::in, {" of batch "}),
      shifted<Accumulate>("sum at other rows", &Accumulate::out, {" of batch "}),
      shifted<Copy>("copy of other rows", &Copy::in, {"batch "}),
      // What a copy leaves unwritten may be read so often that the findings that are kept name no row.
      shifted<Copy>("copy to other rows", &Copy::out, {"rank "}),

      flag("dq not added to", &Backward::accumulate_dq, false, {"dq ends with", "not of its"}),
      flag("dk, dv not added to", &Backward::accumulate_dkv, false, {"dk ends with", "not of its"}),
      flag("dq added to what nothing was written to", &Backward::accumulate_dq, true, {"$step", "dq"}),
      flag("dk, dv added to what nothing was written to", &Backward::accumulate_dkv, true, {"$step", "dk"}),

      left_out<Accumulate>("sum left out", &Accumulate::out, {" ends with "}),
      done_twice<Accumulate>("sum twice", {"made of", "not of its"}),
      {"sum that is none", Book::cells, combine_otherwise},
      left_out<AttentionMerge>("merge left out", &AttentionMerge::out, {"made of", "not of its"}),
      done_twice<AttentionMerge>("merge twice", {"made of", "not of its"}),
      taken<AttentionMerge>("merge of another block", {&AttentionMerge::in, &AttentionMerge::in_lse},
                            {"made of"}),
      taken<AttentionMerge>("merge with the lse of another block", {&AttentionMerge::in_lse},
                            {"$step", "lse"}),
      mistaken<AttentionMerge>("merge with its own lse", &AttentionMerge::in_lse, &AttentionMerge::lse,
                               {"$step", "and its lse of"}),
      {"outputs added, not merged", Book::cells, add_instead_of_merge},
      {"scaled instead of added to", Book::cells, scale_instead_of_sum},
      repeated<Forward>("q of one head for all", &Forward::q, 2, {"$step", "q holds a head twice"}),
      repeated<Forward>("one column of k for all", &Forward::k, 3, {"$step", "k: a row begins with k of"}),
      {"fill with another value", Book::cells, fill_with_another_value},
      {"sums in a type of neither", Book::cells,
       [](Plans& plans) { return keep_sums_in(DType::f16, plans); }},
      scored<Forward>("scores not scaled"),
      scored<Backward>("scores not scaled, backward"),

      {"sent to each other", Book::cells, send_to_each_other},
      {"stored for each other", Book::cells, store_for_each_other},
      {"q sent once more", Book::bytes, [](Plans& plans) { return send_input(plans, "q", 16); }},
      {"k sent once more", Book::bytes, [](Plans& plans) { return send_input(plans, "k", 16); }},
      {"dout sent once more", Book::bytes, [](Plans& plans) { return send_input(plans, "dout", 4); }},
      {"constants sent", Book::bytes, send_constants},
      {"message wider", Book::bytes, widen},
  };
  return defects;
}

}  // namespace cp::testing
