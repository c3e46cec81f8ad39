// The newest samples of every context band, and the refit they allow at the end of a request (paper section 3.2, "The
// sample bank"). The online pass alone does not fit the shape: contexts arrive one request at a time.
#pragma once

#include "core/context_law.h"

#include <cstdint>

namespace adaspark::core {

inline constexpr int32_t kBankDepth = 16; // samples kept of a band

struct SampleBank {
    // Ring of a band; `seen` counts all samples ever, so seen % kBankDepth is the oldest slot once full.
    struct Band {
        uint32_t seen = 0;
        uint32_t context[kBankDepth] = {}; // tokens
        float time[kBankDepth] = {};       // microseconds

        template <class A> void fields(A & a) { a(seen, context, time); }
    };

    Band band[kBands];

    void add(uint32_t context, double time) noexcept;
    int32_t size() const noexcept;   // samples held
    uint32_t bands() const noexcept; // bit b: band b holds samples
    // The sample of a band, which has some, that a law of kQuantile would rest at.
    struct Typical {
        uint32_t context;
        double time; // microseconds
    };
    Typical typical(int32_t b) const noexcept;

    template <class A> void fields(A & a) {
        for (Band & b : band) {
            uint32_t present = b.seen > 0 ? 1 : 0;
            a(present);
            if (present != 0) {
                a(b);
            } else {
                b = Band{}; // what is read into may hold another
            }
        }
    }
};

enum class Refit : uint8_t {
    refused, // the bank says too little
    kept,    // the law is no worse than the candidate
    adopted,
};

// Trains a candidate law on the bank and adopts it if its quantile loss on the judged samples is strictly lower. Not
// for use inside a round (tens of microseconds); no allocation.
Refit refit(ContextLaw & law, const SampleBank & bank) noexcept;

} // namespace adaspark::core
