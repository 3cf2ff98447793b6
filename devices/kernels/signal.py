"""Signal processing: DFT, STFT and MelWeightMatrix."""
