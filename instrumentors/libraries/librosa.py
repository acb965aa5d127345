"""librosa: times decoding, resampling, spectra, features and effects of audio.

- The first call of a function may compile it with Numba.
- A call below 20 µs is not recorded.
- Stagelens does not read samples or names of files.
"""

from __future__ import annotations

from types import MappingProxyType

from ..instrumentor import CallsInstrumentor

_NAMES = {
    "core.audio": "load resample to_mono",
    "core.spectrum": "stft istft griffinlim phase_vocoder magphase reassigned_spectrogram amplitude_to_db power_to_db pcen",
    "core.constantq": "cqt hybrid_cqt pseudo_cqt vqt icqt",
    "core.pitch": "yin pyin piptrack estimate_tuning",
    "feature.spectral": "melspectrogram mfcc chroma_stft chroma_cqt chroma_cens rms tonnetz zero_crossing_rate poly_features "
    "spectral_centroid spectral_bandwidth spectral_contrast spectral_flatness spectral_rolloff",
    "feature.utils": "delta stack_memory",
    "effects": "trim split time_stretch pitch_shift hpss harmonic percussive preemphasis deemphasis",
}


class LibrosaInstrumentor(CallsInstrumentor):
    """Instrumentor of the functions of librosa."""

    library = "librosa"
    title = "librosa"
    stages = MappingProxyType(
        {
            "preprocess": "`load`, `resample`, spectra such as `stft` and `cqt`, `yin` and `pyin`, and the functions of `feature` and `effects`"
        }
    )
    not_timed = (
        "`stream`: your code runs between the blocks",
        "the functions of `onset` and `beat`, and rhythm features",
    )
    tested = MappingProxyType({"librosa": "0.11.0"})
    calls = MappingProxyType({f"librosa.{module}": {"preprocess": names.split()} for module, names in _NAMES.items()})
