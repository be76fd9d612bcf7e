"""A center of vectors that depends on the embedding model only.

The mean of the vectors of an index would depend on texts that a caller may not read.
"""

import numpy as np

from gumshoe.embeddings.embedder import Embedder, Vectors

_ORDINARY_TEXTS = (
    "Can we move the meeting to Thursday afternoon?",
    "Thanks, that works for me.",
    "Please find the signed contract attached.",
    "The invoice for March has not been paid yet.",
    "Your order has been shipped and will arrive on Monday.",
    "Happy birthday! I hope you have a wonderful day.",
    "The server was down for two hours last night.",
    "I am out of the office until the end of the month.",
    "Here are the numbers for the second quarter.",
    "Could you send me the address of the hotel?",
    "The flight from Paris leaves at 7:45 in the morning.",
    "We regret to inform you that your application was not successful.",
    "Who is responsible for the budget of this project?",
    "Click here to unsubscribe from this newsletter.",
    "The doctor says that she can go home tomorrow.",
    "Prices of gas and power rose by four percent.",
    "Reset your password with the link below.",
    "The children have a football match on Saturday.",
    "I do not agree with the changes to section 3.",
    "Legal has reviewed the draft and has some comments.",
    "What is the temperature of the water in the lake?",
    "The new version fixes a bug in the search.",
    "Dinner at our place on Friday at eight?",
    "The committee will vote on the proposal next week.",
    "She plays the violin in an orchestra.",
    "The rent includes heating and electricity.",
    "Our train is late, please start without us.",
    "This is an automatic reply. Please do not answer it.",
    "Il prossimo incontro si terrà a Roma.",
    "Vielen Dank für Ihre schnelle Antwort.",
    "¿Cuándo empieza la reunión de mañana?",
    "明日の会議は午後三時からです。",
)


def compute_neutral_center(embedder: Embedder) -> Vectors:
    """Return the mean vector of fixed texts: [dimensions]."""
    return np.asarray(embedder.embed(_ORDINARY_TEXTS, "passage").mean(axis=0), np.float32)
