// The rows of mixers.cc, each at the end of its mixer's file.
#pragma once

#include "shared/transformer/mixers/mixer.h"

namespace cp {

extern const MixerFacts kRecurrenceMixer, kShortConvolutionMixer;

}  // namespace cp
