"""Score the wirings that a drafter may have been trained with, by running it on traced states."""
